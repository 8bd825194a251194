"""The server and its cluster: does it answer, is it the same version, is anything in its way."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from batuta import __version__
from batuta.cli.checks.finding import Finding, Severity, named, note, ok, warning
from batuta.cli.checks.finding import error as bad
from batuta.client.errors import ApiError, ClientError, NoServerError

if TYPE_CHECKING:
    from batuta.client.answers import Cluster, Job, Node
    from batuta.client.client import Client

MOST_SKEW_S = 2.0
NEVER_FITS = frozenset(
    ("EXCEEDS_CLUSTER", "NO_ACCEPTED_TYPE", "NO_MATCHING_NODE", "TOPOLOGY_UNMET", "QUEUE_HELD")
)
"""Reasons that no amount of waiting helps against, unless somebody changes something."""


def check_server(home: Path | None, *, full: bool = False) -> Iterator[Finding]:
    """All that a server tells about itself. No server is no error: one may not want one."""
    from batuta.client.client import Client

    with Client(home=home, timeout_s=10.0) as client:
        try:
            before_s = time.time()
            cluster = client.cluster()
            after_s = time.time()
            yield ok("server", f"answers at {client.where} after {1000 * (after_s - before_s):.0f} ms")
            yield _version(cluster)
            yield check_clock(cluster.now_s, before_s, after_s, "the server's")
            yield from _nodes(client.nodes())
            yield from _stuck(client.jobs(states=("PENDING", "PREEMPTED")))
            yield from _inside(client, cluster, full)
        except NoServerError as trouble:
            yield note("server", str(trouble), "batuta up starts one; $BATUTA_SERVER names one elsewhere")
        except ApiError as trouble:
            fix = (
                "see $BATUTA_TOKEN and the file `token` of the state directory"
                if trouble.status == 401
                else "see server.log in its state directory"
            )
            yield bad("server", f"refuses: {trouble}", fix)
        except ClientError as trouble:
            yield bad("server", str(trouble), "batuta down, then batuta up")


def _version(cluster: Cluster) -> Finding:
    if cluster.version == __version__:
        return ok("version", f"{__version__}, as the server")
    return warning(
        "version",
        f"this is {__version__}, the server is {cluster.version}",
        "batuta down --keep-jobs, then batuta up",
    )


def check_clock(now_s: float | None, before_s: float, after_s: float, whose: str) -> Finding:
    """The other's time lies between our question and its answer."""
    if now_s is None:
        return note("clock", f"{whose} time is not told", "start it with this version")
    skew_s = max(before_s - now_s, now_s - after_s, 0.0)
    if skew_s > MOST_SKEW_S:
        return warning("clock", f"{whose} differs by {skew_s:.0f} s", "synchronise both (NTP)")
    return ok("clock", f"as {whose}")


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
        yield warning("GPU health", f"{len(ill)} are not healthy: {named(ill, 8)}", "see batuta nodes")
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


def _inside(client: Client, cluster: Cluster, full: bool) -> Iterator[Finding]:
    """What only the server itself can know."""
    try:
        found = client.examine(full=full).findings
    except ApiError as trouble:
        if cluster.trouble:
            yield bad("engine", cluster.trouble, "see server.log")
        if trouble.status not in (404, 405):
            raise
        yield note("inside", "an older server does not examine itself", "start it with this version")
        return
    for one in found:
        yield Finding(one.check, Severity(one.severity), one.found, one.fix)
