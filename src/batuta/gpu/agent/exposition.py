"""The metrics of an agent, `batuta_gpu_*`, in the text format of Prometheus. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from batuta.gpu.attribution.owner import Owner
from batuta.gpu.profiler.usage import GpuUsage, JobUsage, NodeUsage, PodUsage

_MIB: Final = 1 << 20
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


def exposition(usage: NodeUsage, samples: int, failures: int) -> str:
    """All metrics. What is not known is left out, which Prometheus takes for a gap and not for 0."""
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
    lines += _metric(
        "sample_failures_total", "Looks that failed.", [({"node": usage.node}, failures)], "counter"
    )
    return "\n".join(lines)


def _behaviours(usage: NodeUsage) -> Iterator[tuple[dict[str, str], float]]:
    for job in usage.jobs:
        found = job.behaviour
        words = {"type": found.activity, "stage": found.stage, "bottleneck": found.bottleneck}
        yield _of_job(usage, job) | {name: word.value for name, word in words.items()}, 1.0


def _of_gpu(usage: NodeUsage, gpu: GpuUsage) -> dict[str, str]:
    """A GPU with one owner carries its name; one with several is nobody's alone."""
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
    name: str,
    text: str,
    values: Iterable[tuple[Mapping[str, str], float | None]],
    kind: str = "gauge",
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
