"""Publish the usage of a node: annotations `batuta.dev/gpu.*`, metrics `batuta_gpu_*`, the agent's port."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from batuta.gpu.owners import Owner
from batuta.gpu.profiler.signals import SampleStats
from batuta.gpu.profiler.usage import GpuUsage, JobUsage, NodeUsage, PodUsage

PREFIX: Final = "batuta.dev/gpu."
NODE_DEVICES: Final = f"{PREFIX}devices"
"""On a node: what its GPUs are."""
NODE_UTILISATION: Final = f"{PREFIX}utilisation"
"""On a node: how busy each GPU is, with the time of measurement. The binder reads it."""
POD_USAGE: Final = f"{PREFIX}usage"
"""On a pod: how it uses its GPUs."""
POD_JOB: Final = f"{PREFIX}job"
"""On a pod: how its whole job uses the GPUs of this node, and how it behaves."""
_POD_TIME_STEP_S: Final = 300
"""A pod's time is rounded: a pod whose usage does not change is not written every 30 s."""
_MIB: Final = 1 << 20
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PLAIN_TYPE: Final = "text/plain; charset=utf-8"
_SLOW_CLIENT_S: Final = 10.0


def node_annotations(usage: NodeUsage) -> dict[str, str]:
    """Return all annotations of a node."""
    devices = [
        {"index": gpu.index, "uuid": gpu.uuid, "model": gpu.model, "memoryMib": round(gpu.memory_mib)}
        for gpu in usage.gpus
    ]
    busy = {"time": round(usage.time_s, 1), "gpus": [_gpu(gpu) for gpu in usage.gpus]}
    return {NODE_DEVICES: _json(devices), NODE_UTILISATION: _json(busy)}


def pod_annotations(usage: NodeUsage) -> dict[Owner, dict[str, str]]:
    """Return the annotations of each pod that has processes on a GPU."""
    time_s = int(usage.time_s) // _POD_TIME_STEP_S * _POD_TIME_STEP_S
    return {
        pod.owner: {POD_USAGE: _json({"time": time_s, **_pod(pod)}), POD_JOB: _json(_job(job))}
        for job in usage.jobs
        for pod in job.pods
    }


def _gpu(gpu: GpuUsage) -> Mapping[str, Any]:
    # A GPU without a measured utilisation has none here: unknown, not idle.
    return _known(
        index=gpu.index,
        utilisation=_round(gpu.utilisation, 3),
        peak=_round(gpu.utilisation_peak, 3),
        smActivity=_round(gpu.sm_activity, 3),
        memoryUsedMib=_round(gpu.memory_used_mib),
        pcieMibS=_round(gpu.pcie_mib_s, 1),
        nvlinkMibS=_round(gpu.nvlink_mib_s, 1),
        powerW=_round(gpu.power_w),
        temperatureC=_round(gpu.temperature_c),
        owners=len(gpu.owners),
    )


def _pod(pod: PodUsage) -> Mapping[str, Any]:
    return _known(gpus=list(pod.gpus), utilisation=_figures(pod.utilisation), memoryMib=_round(pod.memory_mib))


def _job(job: JobUsage) -> Mapping[str, Any]:
    progress = job.progress
    return _known(
        name=job.job,
        pods=len(job.pods),
        gpus=len(job.gpus),
        utilisation=_figures(job.utilisation),
        memoryMib=_round(job.memory_mib),
        memoryPeakMib=_round(job.memory_peak_mib),
        memoryPlateauMib=_round(job.memory_plateau_mib),
        type=job.behaviour.activity.value,
        stage=job.behaviour.stage.value,
        bottleneck=job.behaviour.bottleneck.value,
        stepTimeS=_round(job.step_time_s, 2),
        iteration=None if progress is None else _round(progress.step),
        finishTime=None if progress is None else _round(progress.finish_s),
        slowdown=_round(job.slowdown, 2),
    )


def _figures(found: SampleStats | None) -> Mapping[str, Any] | None:
    if found is None:
        return None
    return {
        "mean": round(found.mean, 2),
        "p95": round(found.p95, 2),
        "peak": round(found.peak, 2),
        "dutyCycle": round(found.duty_cycle, 2),
    }


def _known(**fields: Any) -> Mapping[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _round(value: float | None, digits: int = 0) -> float | int | None:
    if value is None:
        return None
    return round(value, digits) if digits else round(value)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


_GPU_FIGURES: Final[tuple[tuple[str, str, Callable[[GpuUsage], float | None]], ...]] = (
    ("utilisation_ratio", "Share of the time in which a kernel ran.", lambda gpu: gpu.utilisation),
    ("sm_activity_ratio", "Share of the multiprocessors that had work.", lambda gpu: gpu.sm_activity),
    ("memory_bytes", "Memory of the GPU.", lambda gpu: gpu.memory_mib * _MIB),
    ("memory_used_bytes", "Memory in use.", lambda gpu: _times(gpu.memory_used_mib, _MIB)),
    ("pcie_bytes_per_second", "Traffic over PCIe, both ways.", lambda gpu: _times(gpu.pcie_mib_s, _MIB)),
    (
        "nvlink_bytes_per_second",
        "Traffic over NVLink, both ways and all links.",
        lambda gpu: _times(gpu.nvlink_mib_s, _MIB),
    ),
    ("power_watts", "Power draw.", lambda gpu: gpu.power_w),
    ("temperature_celsius", "Temperature.", lambda gpu: gpu.temperature_c),
)
_POD_FIGURES: Final[tuple[tuple[str, str, Callable[[PodUsage], float | None]], ...]] = (
    (
        "pod_utilisation_ratio",
        "Share of the time of its GPUs that a pod used, mean of the last minutes.",
        lambda pod: None if pod.utilisation is None else pod.utilisation.mean,
    ),
    ("pod_memory_bytes", "Memory that a pod has on its GPUs.", lambda pod: _times(pod.memory_mib, _MIB)),
)
_JOB_FIGURES: Final[tuple[tuple[str, str, Callable[[JobUsage], float | None]], ...]] = (
    (
        "job_utilisation_ratio",
        "Share of the time of its GPUs that a job used, mean of the last minutes.",
        lambda job: None if job.utilisation is None else job.utilisation.mean,
    ),
    (
        "job_duty_cycle_ratio",
        "Share of the samples in which a job did anything.",
        lambda job: None if job.utilisation is None else job.utilisation.duty_cycle,
    ),
    ("job_step_seconds", "Time of one iteration.", lambda job: job.step_time_s),
    (
        "job_step",
        "The iteration that a job says it is at.",
        lambda job: None if job.progress is None else job.progress.step,
    ),
    (
        "job_finish_timestamp_seconds",
        "When a job will be done, by its own reports.",
        lambda job: None if job.progress is None else job.progress.finish_s,
    ),
    ("job_slowdown_ratio", "How many times slower neighbours make a job.", lambda job: job.slowdown),
)


def render_metrics(usage: NodeUsage, samples: int, failures: int) -> str:
    """Return all metrics. Unknown values are left out, which Prometheus takes for a gap and not for 0."""
    lines: list[str] = []
    for name, text, gpu_value in _GPU_FIGURES:
        lines += _metric(name, text, ((_of_gpu(usage, gpu), gpu_value(gpu)) for gpu in usage.gpus))
    pods = [(job, pod) for job in usage.jobs for pod in job.pods]
    for name, text, pod_value in _POD_FIGURES:
        lines += _metric(name, text, ((_of_pod(usage, job, pod), pod_value(pod)) for job, pod in pods))
    for name, text, job_value in _JOB_FIGURES:
        lines += _metric(name, text, ((_of_job(usage, job), job_value(job)) for job in usage.jobs))
    lines += _metric("job_behaviour", "What a job does; always 1.", _behaviours(usage))
    lines += _metric("samples_total", "Looks at the GPUs.", [({"node": usage.node}, samples)], "counter")
    lines += _metric("sample_failures_total", "Looks that failed.", [({"node": usage.node}, failures)], "counter")
    return "\n".join(lines)


def _behaviours(usage: NodeUsage) -> Iterator[tuple[dict[str, str], float]]:
    for job in usage.jobs:
        found = job.behaviour
        labels = {"type": found.activity, "stage": found.stage, "bottleneck": found.bottleneck}
        yield _of_job(usage, job) | {name: label.value for name, label in labels.items()}, 1.0


def _of_gpu(usage: NodeUsage, gpu: GpuUsage) -> dict[str, str]:
    """Return the labels of a GPU; the owner's only if it has exactly one."""
    owner = gpu.owners[0] if len(gpu.owners) == 1 else Owner("")
    return {
        "gpu": str(gpu.index),
        "uuid": gpu.uuid,
        "model": gpu.model,
        "node": usage.node,
        "job": owner.job,
        "pod": owner.pod,
        "namespace": owner.namespace,
    }


def _of_pod(usage: NodeUsage, job: JobUsage, pod: PodUsage) -> dict[str, str]:
    uuids = {gpu.index: gpu.uuid for gpu in usage.gpus}
    return {
        "gpu": ",".join(map(str, pod.gpus)),
        "uuid": ",".join(uuids.get(gpu, "") for gpu in pod.gpus),
        "node": usage.node,
        "job": job.job,
        "pod": pod.owner.pod,
        "namespace": job.namespace,
    }


def _of_job(usage: NodeUsage, job: JobUsage) -> dict[str, str]:
    return {"node": usage.node, "job": job.job, "namespace": job.namespace}


def _metric(
    name: str, text: str, values: Iterable[tuple[Mapping[str, str], float | None]], kind: str = "gauge"
) -> list[str]:
    own = f"batuta_gpu_{name}"
    lines = [
        f"{own}{{{','.join(f'{label}={_quoted(word)}' for label, word in labels.items())}}} {value:.10g}"
        for labels, value in values
        if value is not None
    ]
    return [f"# HELP {own} {text}", f"# TYPE {own} {kind}", *lines] if lines else []


def _quoted(word: str) -> str:
    escaped = word.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{escaped}"'


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


class MetricsServer:
    """Serves metrics and probes. It listens once constructed, and answers for as long as the `with` lasts."""

    def __init__(self, host: str, port: int, metrics: Callable[[], str], trouble: Callable[[], str] = str) -> None:
        """`trouble` returns what is wrong, or an empty text. Raises OSError if the port is taken."""

        class Handler(_Handler):
            pages = {"/metrics": metrics}  # noqa: RUF012 - one server has one set of pages
            health = staticmethod(trouble)

        self._server = (_Server6 if ":" in host else _Server)((host, port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="batuta-metrics", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> MetricsServer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A client that still reads does not delay the end of the agent.
    block_on_close = False


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    pages: dict[str, Callable[[], str]]
    health: Callable[[], str]
    timeout = _SLOW_CLIENT_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in self.pages:
            self._answer(200, self.pages[path](), _METRICS_TYPE)
        elif path in ("/healthz", "/readyz"):
            trouble = self.health()
            self._answer(503 if trouble else 200, trouble or "ok")
        else:
            self._answer(404, "not found")

    def _answer(self, status: int, text: str, kind: str = _PLAIN_TYPE) -> None:
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: there is a probe every few seconds."""
