"""Publish the usage of a node: annotations `batuta.dev/gpu.*`, metrics `batuta_gpu_*`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from batuta.gpu.owners import Owner
from batuta.gpu.profiler.signals import SampleStats
from batuta.gpu.profiler.usage import GpuUsage, JobUsage, NodeUsage, PodUsage

PREFIX: Final = "batuta.dev/gpu."
NODE_DEVICES: Final = f"{PREFIX}devices"  # on a node: what its GPUs are
NODE_UTILISATION: Final = f"{PREFIX}utilisation"
"""On a node: how busy each GPU is, with the time of measurement. The binder reads it."""
NODE_PODS: Final = f"{PREFIX}pods"
"""On a node: how jobs use the GPUs of this node, how they behave, and what each of their pods has, by uid."""
LONGEST_PODS_BYTES: Final = 64 << 10  # all annotations of a node together may have 256 KiB
_MIB: Final = 1 << 20


def node_annotations(usage: NodeUsage, uids: Mapping[str, str]) -> dict[str, str]:
    """Return what the agent writes on its node. `uids`: of the pods of the node, by `namespace/name`."""
    devices = [
        {"index": gpu.index, "uuid": gpu.uuid, "model": gpu.model, "memoryMib": round(gpu.memory_mib)}
        for gpu in usage.gpus
    ]
    busy = {"time": round(usage.time_s, 1), "gpus": [_gpu(gpu) for gpu in usage.gpus]}
    return {NODE_DEVICES: _json(devices), NODE_UTILISATION: _json(busy), NODE_PODS: _pods(usage, uids)}


def _pods(usage: NodeUsage, uids: Mapping[str, str]) -> str:
    """Return the jobs with the pods of each; those that do not fit are left out."""
    texts: list[str] = []
    left_bytes = LONGEST_PODS_BYTES
    for job in usage.jobs:
        keys = {f"{pod.owner.namespace}/{pod.owner.pod}": pod for pod in job.pods}
        pods = {uids[key]: _pod(pod) for key, pod in keys.items() if key in uids}
        text = _json({"job": _job(job), "pods": pods})
        size = len(text.encode()) + 1
        if pods and size <= left_bytes:
            texts.append(text)
            left_bytes -= size
    return f'{{"time":{round(usage.time_s, 1)},"jobs":[{",".join(texts)}]}}'


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
    values = {"mean": found.mean, "p95": found.p95, "peak": found.peak, "dutyCycle": found.duty_cycle}
    return {name: round(value, 2) for name, value in values.items()}


def _known(**fields: Any) -> Mapping[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _round(value: float | None, digits: int | None = None) -> float | int | None:
    return None if value is None else round(value, digits)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


_GPU_METRICS: Final = (
    ("utilisation_ratio", "Share of the time in which a kernel ran.", "utilisation", 1),
    ("sm_activity_ratio", "Share of the multiprocessors that had work.", "sm_activity", 1),
    ("memory_bytes", "Memory of the GPU.", "memory_mib", _MIB),
    ("memory_used_bytes", "Memory in use.", "memory_used_mib", _MIB),
    ("pcie_bytes_per_second", "Traffic over PCIe, both ways.", "pcie_mib_s", _MIB),
    ("nvlink_bytes_per_second", "Traffic over NVLink, both ways and all links.", "nvlink_mib_s", _MIB),
    ("power_watts", "Power draw.", "power_w", 1),
    ("temperature_celsius", "Temperature.", "temperature_c", 1),
)
"""Name, help, where the value is, and its unit there."""
_SHARE_TEXT: Final = "Share of the time of its GPUs that a {} used, mean of the last minutes."
_POD_METRICS: Final = (
    ("pod_utilisation_ratio", _SHARE_TEXT.format("pod"), "utilisation.mean", 1),
    ("pod_memory_bytes", "Memory that a pod has on its GPUs.", "memory_mib", _MIB),
)
_JOB_METRICS: Final = (
    ("job_utilisation_ratio", _SHARE_TEXT.format("job"), "utilisation.mean", 1),
    ("job_duty_cycle_ratio", "Share of the samples in which a job did anything.", "utilisation.duty_cycle", 1),
    ("job_step_seconds", "Time of one iteration.", "step_time_s", 1),
    ("job_step", "The iteration that a job says it is at.", "progress.step", 1),
    ("job_finish_timestamp_seconds", "When a job will be done, by its own reports.", "progress.finish_s", 1),
    ("job_slowdown_ratio", "How many times slower neighbours make a job.", "slowdown", 1),
)


def render_metrics(usage: NodeUsage, samples: int, failures: int) -> str:
    """Return all metrics. Unknown values are left out, which Prometheus takes for a gap and not for 0."""
    gpus = [(_of_gpu(usage, gpu), gpu) for gpu in usage.gpus]
    pods = [(_of_pod(usage, job, pod), pod) for job in usage.jobs for pod in job.pods]
    jobs = [(_of_job(usage, job), job) for job in usage.jobs]
    node = {"node": usage.node}
    lines = [*_metrics(_GPU_METRICS, gpus), *_metrics(_POD_METRICS, pods), *_metrics(_JOB_METRICS, jobs)]
    lines += _metric("job_behaviour", "What a job does; always 1.", [(_of_behaviour(usage, job), 1) for _, job in jobs])
    lines += _metric("samples_total", "Looks at the GPUs.", [(node, samples)], "counter")
    lines += _metric("sample_failures_total", "Looks that failed.", [(node, failures)], "counter")
    return "\n".join([*lines, ""])


def _metrics(
    table: Iterable[tuple[str, str, str, int]], labelled: Sequence[tuple[dict[str, str], object]]
) -> Iterator[str]:
    for name, text, path, unit in table:
        values = [(labels, _at(one, path)) for labels, one in labelled]
        yield from _metric(name, text, [(labels, value * unit) for labels, value in values if value is not None])


def _at(one: Any, path: str) -> float | None:
    """Return the value of an attribute of an attribute; None where any of them is."""
    for name in path.split("."):
        one = None if one is None else getattr(one, name)
    return one  # type: ignore[no-any-return]


def _of_gpu(usage: NodeUsage, gpu: GpuUsage) -> dict[str, str]:
    """Return the labels of a GPU; the owner's only if it has exactly one."""
    owner = gpu.owners[0] if len(gpu.owners) == 1 else Owner("")
    own = {"gpu": str(gpu.index), "uuid": gpu.uuid, "model": gpu.model, "node": usage.node}
    return own | {"job": owner.job, "pod": owner.pod, "namespace": owner.namespace}


def _of_pod(usage: NodeUsage, job: JobUsage, pod: PodUsage) -> dict[str, str]:
    uuids = {gpu.index: gpu.uuid for gpu in usage.gpus}
    own = {"gpu": ",".join(map(str, pod.gpus)), "uuid": ",".join(uuids.get(gpu, "") for gpu in pod.gpus)}
    return own | {"node": usage.node, "job": job.job, "pod": pod.owner.pod, "namespace": job.namespace}


def _of_job(usage: NodeUsage, job: JobUsage) -> dict[str, str]:
    return {"node": usage.node, "job": job.job, "namespace": job.namespace}


def _of_behaviour(usage: NodeUsage, job: JobUsage) -> dict[str, str]:
    found = job.behaviour
    return _of_job(usage, job) | {"type": found.activity, "stage": found.stage, "bottleneck": found.bottleneck}


def _metric(name: str, text: str, values: Sequence[tuple[dict[str, str], float]], kind: str = "gauge") -> list[str]:
    own = f"batuta_gpu_{name}"
    lines = [
        f"{own}{{{','.join(f'{label}={_quoted(word)}' for label, word in labels.items())}}} {value:.10g}"
        for labels, value in values
    ]
    return [f"# HELP {own} {text}", f"# TYPE {own} {kind}", *lines] if lines else []


def _quoted(word: str) -> str:
    escaped = word.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{escaped}"'
