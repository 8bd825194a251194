"""Events of the journal as sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batuta.client.answers import Event


def tell(event: Event) -> list[str]:
    """What happened, one sentence each; nothing for what is of no interest to people."""
    data = event.data
    if event.type == "Planned":
        return list(tell_commands(data))
    if event.type not in _SENTENCES and isinstance(data.get("sentence"), str):
        return [data["sentence"]]  # of a cluster, which has its own words
    sentence = _SENTENCES.get(event.type)
    try:
        return [sentence(data)] if sentence is not None else [event.type]
    except (KeyError, TypeError, ValueError):
        return [event.type]


def tell_commands(data: dict[str, Any]) -> Iterator[str]:
    """What a plan tells to be done."""
    commands = data.get("commands")
    for command in commands if isinstance(commands, list) else ():
        if isinstance(command, dict):
            what = command.get("sentence") or command.get("type")
            yield f"job {command.get('job')} {what}"
    idle = data.get("found_idle")
    for job in idle if isinstance(idle, list) else ():
        yield f"job {job} holds GPUs and does not use them"


def _submitted(data: dict[str, Any]) -> str:
    job = data["job"]
    name = f" ({job['name']})" if job.get("name") not in (None, "", job["id"]) else ""
    by = f" by {job['user']}" if job.get("user") else ""
    span = f" ({job['min']}–{job['max']})" if job.get("min") != job.get("max") else ""
    return f"job {job['id']}{name} is submitted{by}: {_gpus(job['size'])}{span}"


def _gpus(count: int) -> str:
    return f"{count} GPUs" if count != 1 else "1 GPU"


def _queues(quota: dict[str, Any]) -> str:
    count = len(quota["cluster_queues"])
    return f"{count} cluster queues" if count != 1 else "1 cluster queue"


def _progressed(data: dict[str, Any]) -> str:
    progress = data.get("progress") or {}
    parts = []
    if progress.get("fraction") is not None:
        parts.append(f"{100 * progress['fraction']:.0f}%")
    if progress.get("step") is not None:
        parts.append(f"step {progress['step']:,}")
    if progress.get("loss") is not None:
        parts.append(f"loss {progress['loss']:.4g}")
    return f"job {data['job']} reports {', '.join(parts) or 'progress'}"


def _ended(data: dict[str, Any]) -> str:
    code = data.get("exit_code")
    why = data.get("detail") or (f"exit code {code}" if code else "")
    return f"job {data['job']} is over: {data['state']}{f' ({why})' if why else ''}"


def _interrupted(data: dict[str, Any]) -> str:
    why = data.get("detail") or data.get("cause") or ""
    return f"job {data['job']} lost its GPUs and waits again{f' ({why})' if why else ''}"


def _found(data: dict[str, Any]) -> str:
    nodes = {node: len(gpus) for node, gpus in data["placement"][0]}
    where = f"{_gpus(sum(nodes.values()))} of {', '.join(nodes)}" if nodes else "no GPUs"
    why = f" ({data['detail']})" if data.get("detail") else ""
    return f"job {data['job']} is found to have {where}{why}"


def _others(data: dict[str, Any]) -> str:
    cpus, memory = data.get("cpus_milli", 0) / 1000, data.get("memory_mib", 0) / 1024
    return f"others use {_gpus(len(data['gpus']))}, {cpus:g} CPUs and {memory:.1f} GiB of node {data['node']}"


def _use(data: dict[str, Any]) -> str:
    gpus: list[float | None] = data["gpus"]
    if not gpus:
        return f"how busy GPUs of node {data['node']} are is not known any more"
    percents = ", ".join("–" if used is None else f"{used:.0%}" for used in gpus)
    return f"GPUs of node {data['node']} are used: {percents}"


_HEALTH_STATES = {"burn-in": "in its burn-in", "probation": "on probation"}


def _because(data: dict[str, Any]) -> str:
    return f" ({data['reason']})" if data.get("reason") else ""


def _health(data: dict[str, Any]) -> str:
    what = f"node {data['node']}" if data.get("gpu") is None else f"GPU {data['gpu']} of node {data['node']}"
    if data["state"] == "alert":
        return f"{what} is ill and stays in service{_because(data)}"
    state = str(data["state"])
    return f"{what} is {_HEALTH_STATES.get(state, state)}{_because(data)}"


def _timed(data: dict[str, Any]) -> str:
    steps = {"checkpoint": "checkpoint_s", "stop": "stop_s", "start": "start_s"}
    parts = [f"{name} {data[key]:.2g} s" for name, key in steps.items() if data.get(key) is not None]
    return f"job {data['job']} changed to {_gpus(data['gpus'])}: {', '.join(parts) or 'no times known'}"


def _wished(data: dict[str, Any]) -> str:
    if data.get("cause") == "held-up":
        return f"job {data['job']} leaves its GPUs for others, because of what holds it up"
    if data.get("cause") == "trial":
        after = "is queued" if data["wish"] == "RUN" else "is ended"
        return f"job {data['job']} {after}: it is measured"
    if data["wish"] == "EVICT":
        why = "because of an error there" if data.get("cause") == "health" else "for a node is drained"
        return f"job {data['job']} has to leave its GPUs, {why}"
    return f"its user wants job {data['job']} to {str(data['wish']).lower()}"


def _tried(data: dict[str, Any]) -> str:
    one = data["measured"]
    speed = one.get("units_per_s")
    how = str(one["outcome"]).replace("_", " ").lower() if speed is None else f"{speed:.3g} {one['unit']}/s"
    return f"job {data['job']} was tried out with {_gpus(one['gpus'])}: {how}"


_SENTENCES: dict[str, Callable[[dict[str, Any]], str]] = {
    "JobSubmitted": _submitted,
    "JobStarted": lambda data: f"job {data['job']} runs",
    "JobProgressed": _progressed,
    "JobFound": _found,
    "JobInterrupted": _interrupted,
    "JobEnded": _ended,
    "JobForgotten": lambda data: f"job {data['job']} is no longer kept in mind",
    "JobChanged": lambda data: (
        f"job {data['job']['id']} now asks for {data['job']['size']} GPUs "
        f"({data['job']['min']}–{data['job']['max']}), queue {data['job']['queue']}"
    ),
    "JobHeldUp": lambda data: f"job {data['job']}: {data.get('sentence') or 'it is held up by some ranks'}",
    "JobWished": _wished,
    "TransitionTimed": _timed,
    "TrialMeasured": _tried,
    "PolicySet": lambda data: f"policy {data['policy']} decides from now on",
    "NodeAdded": lambda data: f"node {data['node']['name']} joins with {data['node']['gpus']} GPUs",
    "NodeChanged": lambda data: f"node {data['node']['name']} has changed: {_gpus(data['node']['gpus'])}",
    "OthersUse": _others,
    "NodeLost": lambda data: f"node {data['node']} is lost",
    "NodeReturned": lambda data: f"node {data['node']} is back",
    "NodeCordoned": lambda data: f"node {data['node']} is cordoned",
    "NodeUncordoned": lambda data: f"node {data['node']} is in service again",
    "GpuFailed": lambda data: f"GPU {data['gpu']} of node {data['node']} failed{_because(data)}",
    "GpuRepaired": lambda data: f"GPU {data['gpu']} of node {data['node']} works again",
    "HealthChanged": _health,
    "GpusUsed": _use,
    "QuotaSet": lambda data: f"quota is set: {_queues(data['quota'])}",
    "reset": lambda data: "some events were missed",
}
