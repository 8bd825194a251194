"""What the agent writes on a node and on its pods: annotations `batuta.dev/gpu.*`, as short JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from batuta.gpu.attribution.owner import Owner
from batuta.gpu.profiler.figures import Figures
from batuta.gpu.profiler.usage import GpuUsage, JobUsage, NodeUsage, PodUsage

PREFIX: Final = "batuta.dev/gpu."
NODE_DEVICES: Final = f"{PREFIX}devices"
"""On a node: what its GPUs are."""
NODE_UTILISATION: Final = f"{PREFIX}utilisation"
"""On a node: how busy each GPU is, with the time of measurement. The binder reads it."""
POD_USAGE: Final = f"{PREFIX}usage"
"""On a pod: what it makes of its GPUs."""
POD_JOB: Final = f"{PREFIX}job"
"""On a pod: what its job as a whole makes of the GPUs of this node, and how it behaves."""
POD_KEYS: Final = (POD_USAGE, POD_JOB)
_POD_TIME_STEP_S: Final = 300
"""A pod's time goes in steps: a pod that does the same all the time is not written every 30 s."""


def node_annotations(usage: NodeUsage) -> dict[str, str]:
    """All annotations of a node."""
    devices = [
        {"index": gpu.index, "uuid": gpu.uuid, "model": gpu.model, "memoryMib": round(gpu.memory_mib)}
        for gpu in usage.gpus
    ]
    busy = {"time": round(usage.time_s, 1), "gpus": [_gpu(gpu) for gpu in usage.gpus]}
    return {NODE_DEVICES: _json(devices), NODE_UTILISATION: _json(busy)}


def pod_annotations(usage: NodeUsage) -> dict[Owner, dict[str, str]]:
    """The annotations of each pod that has processes on a GPU."""
    time_s = int(usage.time_s) // _POD_TIME_STEP_S * _POD_TIME_STEP_S
    return {
        pod.owner: {POD_USAGE: _json({"time": time_s, **_pod(pod)}), POD_JOB: _json(_job(job))}
        for job in usage.jobs
        for pod in job.pods
    }


def _gpu(gpu: GpuUsage) -> Mapping[str, Any]:
    # A GPU that cannot tell how busy it is has no utilisation here: unknown, and not idle.
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
    return _known(
        gpus=list(pod.gpus), utilisation=_figures(pod.utilisation), memoryMib=_round(pod.memory_mib)
    )


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


def _figures(found: Figures | None) -> Mapping[str, Any] | None:
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
