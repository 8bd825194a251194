"""Output that the cluster has no longer: from a Loki, when one is named."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from batuta.client.answers import Job
    from batuta.client.connection import Connection
    from batuta.client.errors import ClientError, UnknownJobError
    from batuta.client.loki import LokiAddress

LokiOption = Annotated[
    str | None,
    typer.Option(
        "--loki",
        help="A Loki that has the output of pods that are gone; default $BATUTA_LOKI.",
        metavar="URL",
        show_default=False,
    ),
]
TenantOption = Annotated[
    str | None,
    typer.Option(
        "--loki-tenant",
        help="Whose logs, where it keeps several people's; default $BATUTA_LOKI_TENANT.",
        metavar="NAME",
        show_default=False,
    ),
]
_HINT = "--loki URL, or $BATUTA_LOKI, reads what a Loki has kept of it"
_SLACK_S = 60.0
"""Clocks of nodes differ a little."""
_LAST_WORDS_S = 3600.0
"""How long after the end of a job its pods may still print."""
_FORGOTTEN_S = 7 * 86_400.0
"""How far back one looks for a job whose times nobody knows any more."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What `batuta logs` was asked for."""

    rank: int = 0
    tail: int | None = None
    since_s: float | None = None
    loki: LokiAddress | None = None


def loki_of(url: str | None, tenant: str | None) -> LokiAddress | None:
    """The Loki that is meant; None when none is named. A token comes from the environment only."""
    from batuta.client.loki import LOKI_VARIABLE, TENANT_VARIABLE, TOKEN_VARIABLE, LokiAddress

    url = url or os.environ.get(LOKI_VARIABLE)
    if not url:
        return None
    tenant = tenant or os.environ.get(TENANT_VARIABLE, "")
    return LokiAddress.of(url, os.environ.get(TOKEN_VARIABLE, ""), tenant)


def print_past(client: Connection, job: Job, asked: Asked) -> None:
    """What a job has printed so far: from the cluster or the server, else from Loki."""
    from batuta.cli.follow import write_output
    from batuta.cli.terminal import say
    from batuta.client.errors import OutputGoneError

    pieces = client.log_bytes(job, rank=asked.rank, tail=asked.tail, since_s=asked.since_s)
    try:
        first = next(pieces, b"")
    except OutputGoneError as gone:
        if asked.loki is None:
            say(f"{gone}: {_HINT}")
            return
        _print_old(job.id, asked, asked.loki, gone, _from_s(job), _to_s(job))
    else:
        write_output(chain([first], pieces))


def print_forgotten(client: Connection, name: str, asked: Asked, unknown: UnknownJobError) -> None:
    """The output of a job that the cluster does not know any more. Without a Loki, `unknown` is raised."""
    if asked.loki is None:
        raise unknown
    from batuta.client.kube.client import KubeClient

    namespace = client.namespace_of(name) if isinstance(client, KubeClient) else ""
    if not namespace:
        raise unknown
    now_s = time.time()
    job_id = f"{namespace}/{name.rpartition('/')[2]}"
    if not _print_old(job_id, asked, asked.loki, unknown, now_s - _FORGOTTEN_S, now_s):
        raise unknown


def _from_s(job: Job) -> float:
    """Before that, another job of this name may have printed."""
    begun_s = job.submitted_s if job.submitted_s is not None else time.time() - _FORGOTTEN_S
    return begun_s - _SLACK_S


def _to_s(job: Job) -> float:
    now_s = time.time() + _SLACK_S
    return now_s if job.ended_s is None else min(now_s, job.ended_s + _LAST_WORDS_S)


def _print_old(
    job_id: str, asked: Asked, address: LokiAddress, why: ClientError, from_s: float, to_s: float
) -> bool:
    """Whether Loki had something."""
    from batuta.cli.follow import write_output
    from batuta.cli.terminal import say, show_moment
    from batuta.client.loki import Loki
    from batuta.client.loki_job import OldJob, old_output

    if asked.since_s is not None:
        from_s = max(from_s, asked.since_s)
    namespace, _, name = job_id.rpartition("/")
    old = OldJob(namespace, name, asked.rank, from_s, to_s)
    with Loki(address) as loki:
        say(f"{why}: what follows is from Loki at {loki.name}")
        found = write_output(old_output(loki, old, asked.tail, _note(say)))
        if not found:
            say(f"Loki has nothing of replica {asked.rank} of job {job_id} since {show_moment(from_s)}")
    return found


def _note(say: Callable[[str], None]) -> Callable[[str], None]:
    return lambda text: say(f"note: {text}")
