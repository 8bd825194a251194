"""The server and its cluster: does it answer, is it the same version, is anything in its way."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from batuta import __version__
from batuta.cli.checks.finding import Finding, note, ok, warning
from batuta.cli.checks.finding import error as bad
from batuta.client.errors import ApiError, ClientError, NoServerError

if TYPE_CHECKING:
    from batuta.client.answers import Cluster, Job, Node

MOST_SKEW_S = 2.0
NEVER_FITS = frozenset(
    ("EXCEEDS_CLUSTER", "NO_ACCEPTED_TYPE", "NO_MATCHING_NODE", "TOPOLOGY_UNMET", "QUEUE_HELD")
)
"""Reasons that no amount of waiting helps against, unless somebody changes something."""


def check_server(home: Path | None) -> Iterator[Finding]:
    """All that a server tells about itself. No server is no error: one may not want one."""
    from batuta.client.client import Client

    with Client(home=home, timeout_s=10.0) as client:
        try:
            before_s = time.time()
            cluster = client.cluster()
            after_s = time.time()
            where = client.address.url if client.address else ""
            yield ok("server", f"answers at {where} after {1000 * (after_s - before_s):.0f} ms")
            yield from _engine(cluster)
            yield _clock(cluster, before_s, after_s)
            yield from _nodes(client.nodes())
            yield from _stuck(client.jobs(states=("PENDING", "PREEMPTED")))
        except NoServerError as trouble:
            yield note("server", str(trouble))
        except ApiError as trouble:
            fix = (
                "see $BATUTA_TOKEN and the file `token` of the state directory"
                if trouble.status == 401
                else ""
            )
            yield bad("server", f"refuses: {trouble}", fix)
        except ClientError as trouble:
            yield bad("server", str(trouble), "batuta down, then batuta up")


def _engine(cluster: Cluster) -> Iterator[Finding]:
    if cluster.version == __version__:
        yield ok("version", f"{__version__}, as the server")
    else:
        yield warning(
            "version",
            f"this is {__version__}, the server is {cluster.version}",
            "batuta down --keep-jobs, then batuta up",
        )
    if cluster.trouble:
        yield bad("journal", cluster.trouble, "make room; jobs run on and nothing is lost meanwhile")
    else:
        yield ok("journal", f"{cluster.seq:,} events, no trouble")


def _clock(cluster: Cluster, before_s: float, after_s: float) -> Finding:
    """The server's time lies between our question and its answer."""
    if cluster.now_s is None:
        return note("clock", "the server does not tell its time")
    skew_s = max(before_s - cluster.now_s, cluster.now_s - after_s, 0.0)
    if skew_s > MOST_SKEW_S:
        return warning("clock", f"the server's differs by {skew_s:.0f} s", "synchronise both (NTP)")
    return ok("clock", "as the server's")


def _nodes(nodes: Sequence[Node]) -> Iterator[Finding]:
    if not nodes:
        yield bad("nodes", "there are none", "batuta up --nodes N --gpus M")
        return
    out = {state: [n.name for n in nodes if n.state == state] for state in ("lost", "cordoned", "draining")}
    ill = [f"{node.name}:{gpu.index}" for node in nodes for gpu in node.gpus if not gpu.healthy]
    if out["lost"]:
        yield warning(
            "nodes", f"lost: {', '.join(out['lost'])}", "start the server with as many nodes as before"
        )
    for state in ("cordoned", "draining"):
        if out[state]:
            yield warning(
                "nodes", f"{state}: {', '.join(out[state])}", f"batuta nodes uncordon {out[state][0]}"
            )
    if ill:
        yield warning("GPU health", f"{len(ill)} are not healthy: {', '.join(ill[:8])}", "see batuta gpus")
    if not any(out.values()) and not ill:
        yield ok("nodes", f"{len(nodes)} ready")


def _stuck(jobs: Sequence[Job]) -> Iterator[Finding]:
    stuck = [job for job in jobs if job.reason is not None and job.reason.code in NEVER_FITS]
    for job in stuck[:10]:
        assert job.reason is not None
        fix = f"batuta explain {job.id}; batuta resize or cancel it"
        yield warning(f"job {job.id}", f"waits for what cannot happen: {job.reason.sentence}", fix)
    if not stuck:
        yield ok("waiting jobs", f"{len(jobs)}, none that could never run")
