"""What `batuta doctor` finds wrong with a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from batuta.bootstrap.kube import check_extra
from batuta.engine.finding import Finding, error, note, ok, warning

if TYPE_CHECKING:
    from batuta.backends.kube.doctor.sight import Sight

MOST_SKEW_S = 3.0
"""An API server tells its time to the second."""


def check_cluster(kubeconfig: Path | None, context: str | None, namespace: str | None) -> Iterator[Finding]:
    """All that can be seen with the user's own rights. A cluster that does not answer is one finding."""
    check_extra()
    from batuta.backends.kube.doctor.sight import look
    from batuta.bootstrap import version
    from batuta.client.errors import ClientError
    from batuta.client.kube.session import Session

    session = Session(kubeconfig, context)
    try:
        sight = session.run(lambda api: look(api, namespace or ""))
    except ClientError as trouble:
        yield error("API server", str(trouble), "see --context, and whether kubectl reaches it")
        return
    finally:
        session.close()
    yield from findings_of(sight, version())


def findings_of(sight: Sight, version: str) -> Iterator[Finding]:
    """What is wrong with a cluster that was looked at."""
    from batuta.backends.kube.doctor.control_plane import check_control_plane
    from batuta.backends.kube.doctor.jobs import check_jobs
    from batuta.backends.kube.doctor.nodes import check_nodes

    yield ok("API server", f"answers after {1000 * (sight.answered_s - sight.asked_s):.0f} ms")
    yield _clock(sight)
    yield from check_control_plane(sight, version)
    yield from check_nodes(sight)
    yield from check_jobs(sight)
    if sight.refused:
        yield note(
            "rights",
            f"you may not list {', '.join(sight.refused)}: what they tell is not checked",
            "ask an administrator, or for the right to list them",
        )


def _clock(sight: Sight) -> Finding:
    """The server's time, which is told to the second, lies between our question and its answer."""
    if sight.server_s is None:
        fix = "compare it by hand: a proxy in between may have taken the Date out of its answers"
        return note("clock", "the API server does not tell its time", fix)
    skew_s = max(sight.asked_s - (sight.server_s + 1.0), sight.server_s - sight.answered_s, 0.0)
    if skew_s > MOST_SKEW_S:
        return warning(
            "clock",
            f"the API server's differs from this machine's by {skew_s:.0f} s",
            "synchronise both (NTP): certificates and tokens are refused when they differ too much",
        )
    return ok("clock", "as the API server's")
