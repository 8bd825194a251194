"""`batuta events`: events of the journal as sentences."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from batuta.apitypes.resources import Event
from batuta.cli.options import HomeOption, Output, OutputOption, connect, flag, option
from batuta.cli.output import format_gpus, format_time

HIDDEN_TYPES = ("JobProgressed", "JobCheckpointed", "TransitionTimed", "TimePassed")
"""Types that are printed only with --type or as JSON."""


ACTIONS = {
    "token.create": "a token is made for {}",
    "token.revoke": "a token is revoked: {}",
    "session.begin": "a browser is signed in",
    "session.end": "a browser is signed out",
    "server.shutdown": "the server is ended{}",
    "node.mended": "{} is said to be mended",
    "config.set": "settings of the operator are changed: {}",
    "shadow.set": "the policy that only watches is {} from now on",
}
"""What users did that is not of the World."""


def events(
    follow: Annotated[bool, flag("--follow/--no-follow -f", "Go on as they happen.")] = False,
    tail: Annotated[int, option("The last N first.", "N", names="--tail -n", min=0)] = 20,
    job: Annotated[str | None, option("Only those of one job.", names="--job -j", complete="active jobs")] = None,
    type: Annotated[
        list[str] | None, option("Only this type, such as JobEnded; repeatable.", names="--type -t")
    ] = None,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Print what happened, and with --follow what happens.

    Reports of progress are left out unless --type asks for them. JSON has all, as one object per line.

    Examples:
      batuta events --tail 50
      batuta events --follow --type JobEnded -o json
    """
    with connect(home) as client:
        only = None if job is None else client.job(job).id
        types = tuple(type or ())
        skip = () if types or output is Output.JSON else HIDDEN_TYPES
        last = client.last_event()
        try:
            for event in client.recent_events(tail, types, only, skip):
                last = max(last, event.seq)
                _print(event, output)
            for event in client.events(last, types, only) if follow else ():
                if event.type not in skip:
                    _print(event, output)
        except KeyboardInterrupt:
            return


def _print(event: Event, output: Output) -> None:
    if output is Output.JSON:
        line = {"seq": event.seq, "type": event.type, **event.data}
        typer.echo(json.dumps(line, ensure_ascii=False))
        return
    for sentence in event_sentences(event):
        typer.echo(f"{format_time(event.time_s)}  {sentence}")


def event_sentences(event: Event) -> list[str]:
    """Return one sentence for each thing that happened."""
    data = event.data
    if event.type == "Planned":
        return list(command_sentences(data))
    if event.type not in _SENTENCES and isinstance(data.get("sentence"), str):
        return [data["sentence"]]  # an event of a cluster comes with its text
    sentence = _SENTENCES.get(event.type)
    try:
        return [sentence(data)] if sentence is not None else [event.type]
    except (KeyError, TypeError, ValueError):
        return [event.type]


def command_sentences(data: dict[str, Any]) -> Iterator[str]:
    """Return a sentence for each command of a plan, and for each job that it found idle."""
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
    return f"job {job['id']}{name} is submitted{by}: {format_gpus(job['size'])}{span}"


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


def _adopted(data: dict[str, Any]) -> str:
    nodes = {node: len(gpus) for node, gpus in data["placement"][0]}
    where = f"{format_gpus(sum(nodes.values()))} of {', '.join(nodes)}" if nodes else "no GPUs"
    why = f" ({data['detail']})" if data.get("detail") else ""
    return f"job {data['job']} is found to have {where}{why}"


def _foreign_usage(data: dict[str, Any]) -> str:
    cpus, memory = data.get("cpus_milli", 0) / 1000, data.get("memory_mib", 0) / 1024
    gpus = format_gpus(len(data["gpus"]))
    return f"others use {gpus}, {cpus:g} CPUs and {memory:.1f} GiB of node {data['node']}"


def _gpu_usage(data: dict[str, Any]) -> str:
    gpus: list[float | None] = data["gpus"]
    if not gpus:
        return f"how busy GPUs of node {data['node']} are is not known any more"
    percents = ", ".join("–" if used is None else f"{used:.0%}" for used in gpus)
    return f"GPUs of node {data['node']} are used: {percents}"


_HEALTH_STATES = {"burn-in": "in its burn-in", "probation": "on probation"}


def _reason_suffix(data: dict[str, Any]) -> str:
    return f" ({data['reason']})" if data.get("reason") else ""


def _health(data: dict[str, Any]) -> str:
    what = f"node {data['node']}" if data.get("gpu") is None else f"GPU {data['gpu']} of node {data['node']}"
    if data["state"] == "alert":
        return f"{what} is ill and stays in service{_reason_suffix(data)}"
    state = str(data["state"])
    return f"{what} is {_HEALTH_STATES.get(state, state)}{_reason_suffix(data)}"


def _transition_timed(data: dict[str, Any]) -> str:
    steps = {"checkpoint": "checkpoint_s", "stop": "stop_s", "start": "start_s"}
    parts = [f"{name} {data[key]:.2g} s" for name, key in steps.items() if data.get(key) is not None]
    return f"job {data['job']} changed to {format_gpus(data['gpus'])}: {', '.join(parts) or 'no times known'}"


_WISHED = {"RUN": "run", "PARK": "be parked", "CANCEL": "be cancelled", "TRY": "be tried out"}


def _desired_state(data: dict[str, Any]) -> str:
    if data.get("cause") == "held-up":
        return f"job {data['job']} leaves its GPUs for others, because of what holds it up"
    if data.get("cause") == "trial":
        after = "is queued" if data["wish"] == "RUN" else "is ended"
        return f"job {data['job']} {after}: it is measured"
    if data["wish"] == "EVICT":
        why = "because of an error there" if data.get("cause") == "health" else "for a node is drained"
        return f"job {data['job']} has to leave its GPUs, {why}"
    return f"job {data['job']} is to {_WISHED[data['wish']]}"


def _trial_measured(data: dict[str, Any]) -> str:
    one = data["measured"]
    speed = one.get("units_per_s")
    how = str(one["outcome"]).replace("_", " ").lower() if speed is None else f"{speed:.3g} {one['unit']}/s"
    return f"job {data['job']} was tried out with {format_gpus(one['gpus'])}: {how}"


_SENTENCES: dict[str, Callable[[dict[str, Any]], str]] = {
    "JobSubmitted": _submitted,
    "JobStarted": lambda data: f"job {data['job']} runs",
    "JobProgressed": _progressed,
    "JobCheckpointed": lambda data: (
        f"job {data['job']} saves when it is asked"
        if data.get("saved_s") is None
        else f"job {data['job']} has saved a checkpoint"
    ),
    "JobFound": _adopted,
    "JobInterrupted": _interrupted,
    "JobEnded": _ended,
    "JobForgotten": lambda data: f"job {data['job']} is no longer kept in mind",
    "JobChanged": lambda data: (
        f"job {data['job']['id']} now asks for {data['job']['size']} GPUs "
        f"({data['job']['min']}–{data['job']['max']}), queue {data['job']['queue']}"
    ),
    "JobHeldUp": lambda data: f"job {data['job']}: {data.get('sentence') or 'it is held up by some ranks'}",
    "JobWished": _desired_state,
    "TransitionTimed": _transition_timed,
    "TrialMeasured": _trial_measured,
    "PolicySet": lambda data: f"policy {data['policy']} decides from now on",
    "NodeAdded": lambda data: f"node {data['node']['name']} joins with {data['node']['gpus']} GPUs",
    "NodeChanged": lambda data: f"node {data['node']['name']} has changed: {format_gpus(data['node']['gpus'])}",
    "OthersUse": _foreign_usage,
    "NodeLost": lambda data: f"node {data['node']} is lost",
    "NodeReturned": lambda data: f"node {data['node']} is back",
    "NodeCordoned": lambda data: f"node {data['node']} is cordoned",
    "NodeUncordoned": lambda data: f"node {data['node']} is in service again",
    "GpuFailed": lambda data: f"GPU {data['gpu']} of node {data['node']} failed{_reason_suffix(data)}",
    "GpuRepaired": lambda data: f"GPU {data['gpu']} of node {data['node']} works again",
    "HealthChanged": _health,
    "ActionTaken": lambda data: ACTIONS.get(data["action"], data["action"]).format(data.get("target", "")),
    "GpusUsed": _gpu_usage,
    "QuotaSet": lambda data: (
        f"quota is set: {len(data['quota']['cluster_queues'])} cluster queue"
        f"{'' if len(data['quota']['cluster_queues']) == 1 else 's'}"
    ),
    "reset": lambda data: "some events were missed",
}
