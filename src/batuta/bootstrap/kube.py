"""What the CLI's commands for Kubernetes need: operator, client, doctor and install. Light to import."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batuta.engine.soundness import Finding, error, note, ok, warning
from batuta.spec.problem import InputError
from batuta.telemetry import LogFormat

if TYPE_CHECKING:
    from batuta.backends.kube.doctor import ClusterSnapshot
    from batuta.backends.kube.install.release import Manifest, Release
    from batuta.client.kube.client import KubeClient


_NEEDED = ("aiohttp", "msgspec")
_COLLECT_AFTER = (20_000, 20, 50)


def check_extra() -> None:
    """Says how to get what Kubernetes needs, if it is not there."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise InputError.of(
            f"Kubernetes needs {' and '.join(missing)}, which {are} not installed", fix="pip install 'batuta[kube]'"
        )


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """Where an operator runs."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str = "batuta-system"  # where the Lease is
    identity: str = ""
    elect: bool = True
    state_dir: Path | None = None


def operate(
    options: OperatorOptions,
    config: Path | None,
    port: int | None = None,
    otlp: str | None = None,
    log_format: LogFormat | None = None,
) -> int:
    """Runs an operator; returns its exit code. None leaves a setting to the file, and that to its defaults."""
    check_extra()
    # Thousands of objects come at once, and stay: there is no garbage to be looked for among them.
    gc.set_threshold(*_COLLECT_AFTER)
    from batuta.backends.kube.client.errors import AccessError
    from batuta.backends.kube.operator_config import OperatorConfig, read_operator_config
    from batuta.bootstrap.operator import run_operator
    from batuta.bootstrap.operator_leader import binder_profile
    from batuta.telemetry.exporter import check_otlp
    from batuta.telemetry.logs import log_to_stderr

    file = OperatorConfig() if config is None else read_operator_config(config)
    binder_profile(file)
    found = file.model_copy(
        update={
            "api": file.api.model_copy(update=_given(port=port)),
            "telemetry": file.telemetry.model_copy(update=_given(otlp_url=otlp, log_format=log_format)),
        }
    )
    check_otlp(found.telemetry.otlp_url, "telemetry.otlpUrl" if otlp is None else "--otlp")
    log_to_stderr(found.telemetry.log_format)
    try:
        return run_operator(options, found, file)
    except AccessError as error:
        raise InputError.of(str(error)) from None


def _given(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def connect_to_cluster(
    kubeconfig: Path | None, context: str | None, namespace: str | None, *, all_namespaces: bool
) -> KubeClient:
    """The cluster of a kubeconfig. Nothing is opened yet."""
    check_extra()
    from batuta import __version__
    from batuta.client.kube.client import KubeClient

    return KubeClient(kubeconfig, context, namespace, all_namespaces=all_namespaces, version=__version__)


MOST_SKEW_S = 3.0  # an API server tells its time to the second


def check_cluster(kubeconfig: Path | None, context: str | None, namespace: str | None) -> Iterator[Finding]:
    """All that can be seen with the user's own rights. A cluster that does not answer is one finding."""
    check_extra()
    from batuta import __version__
    from batuta.backends.kube.doctor import take_snapshot
    from batuta.client.errors import ClientError
    from batuta.client.kube.session import Session

    session = Session(kubeconfig, context)
    try:
        sight = session.run(lambda api: take_snapshot(api, namespace or ""))
    except ClientError as trouble:
        yield error("API server", str(trouble), "see --context, and whether kubectl reaches it")
        return
    finally:
        session.close()
    yield from findings_of(sight, __version__)


def findings_of(sight: ClusterSnapshot, version: str) -> Iterator[Finding]:
    """What is wrong with a cluster that was looked at."""
    from batuta.backends.kube.doctor import check_control_plane, check_jobs, check_nodes

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


def _clock(sight: ClusterSnapshot) -> Finding:
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


_LONGEST_NAMESPACE = 63
_LONGEST_RELEASE = 53  # as Helm has it


@dataclass(frozen=True, slots=True)
class Installation:
    """Everything that a cluster needs, in the order in which it is applied."""

    definitions: tuple[Manifest, ...]
    namespace: tuple[Manifest, ...]
    objects: tuple[Manifest, ...]
    notes: tuple[str, ...]


def plan_install(
    namespace: str, release_name: str, files: Sequence[Path], settings: Sequence[str], *, create_namespace: bool
) -> Installation:
    """Builds all objects, or raises InputError with every problem of the options."""
    from batuta.backends.kube.install.chart import manifests, read_definitions
    from batuta.backends.kube.install.chart import namespace as namespace_of

    release = _release(namespace, release_name, files, settings)
    return Installation(
        definitions=tuple(read_definitions()),
        namespace=(namespace_of(release),) if create_namespace else (),
        objects=tuple(manifests(release)),
        notes=tuple(_notes(release)),
    )


def _release(namespace: str, release_name: str, files: Sequence[Path], settings: Sequence[str]) -> Release:
    import re

    from batuta import __version__
    from batuta.backends.kube.install.release import Release, read_values
    from batuta.spec.problem import InputError, Problem

    problems = [
        Problem(f"{flag} {name!r} is not a name", fix=f"a-z, 0-9 and dashes, {most} at most, a letter first")
        for flag, name, most in (
            ("--namespace", namespace, _LONGEST_NAMESPACE),
            ("--release", release_name, _LONGEST_RELEASE),
        )
        if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) or len(name) > most
    ]
    try:
        values = read_values(files, settings)
    except InputError as error:
        problems.extend(error.problems)
    if problems:
        raise InputError(problems)
    return Release(values, namespace, __version__, release_name)


def _notes(release: Release) -> Sequence[str]:
    """What is allowed and yet may be a mistake."""
    from batuta.policies.registry import policy_names
    from batuta.spec.problem import did_you_mean

    policy, known = release.values.config.policy, policy_names()
    if policy in known:
        return ()
    return (f"there is no policy {policy} here ({did_you_mean(policy, known)}); the image must have it",)
