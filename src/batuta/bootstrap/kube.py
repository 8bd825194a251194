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
            f"Kubernetes needs {' and '.join(missing)}, which {are} not installed",
            fix="pip install 'batuta[kube]'",
        )


@dataclass(frozen=True, slots=True)
class OperatorFlags:
    """What the command line says of an operator; None leaves it to the configuration."""

    config: Path | None
    kubeconfig: Path | None
    context: str | None
    namespace: str
    identity: str
    state_dir: Path | None
    port: int | None
    elect: bool
    otlp: str | None = None
    log_format: LogFormat | None = None

    @property
    def telemetry(self) -> dict[str, Any]:
        said = {"otlp_url": self.otlp, "log_format": self.log_format}
        return {key: value for key, value in said.items() if value is not None}


def operate(words: OperatorFlags) -> int:
    """Runs an operator; returns its exit code."""
    check_extra()
    # Thousands of objects come at once, and stay: there is no garbage to be looked for among them.
    gc.set_threshold(*_COLLECT_AFTER)
    from batuta.backends.kube.client.errors import AccessError
    from batuta.backends.kube.operator_config import OperatorConfig, read_operator_config
    from batuta.bootstrap.operator import OperatorOptions, run_operator
    from batuta.bootstrap.operator_leader import binder_profile
    from batuta.bootstrap.telemetry import check_otlp, log_to_stderr

    found = OperatorConfig() if words.config is None else read_operator_config(words.config)
    binder_profile(found)
    if words.port is not None:
        found = found.model_copy(update={"api": found.api.model_copy(update={"port": words.port})})
    found = found.model_copy(update={"telemetry": found.telemetry.model_copy(update=words.telemetry)})
    check_otlp(found.telemetry.otlp_url, "telemetry.otlpUrl" if words.otlp is None else "--otlp")
    log_to_stderr(found.telemetry.log_format)
    try:
        return run_operator(
            OperatorOptions(
                found,
                words.kubeconfig,
                words.context,
                words.namespace,
                words.identity,
                words.elect,
                words.state_dir,
            )
        )
    except AccessError as error:
        raise InputError.of(str(error)) from None


def connect_to_cluster(
    kubeconfig: Path | None, context: str | None, namespace: str | None, *, all_namespaces: bool
) -> KubeClient:
    """The cluster of a kubeconfig. Nothing is opened yet."""
    check_extra()
    from batuta import __version__
    from batuta.client.kube.client import KubeClient

    return KubeClient(kubeconfig, context, namespace, all_namespaces=all_namespaces, version=__version__)


MOST_SKEW_S = 3.0
"""An API server tells its time to the second."""


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
class InstallOptions:
    """Where and how Batuta shall run."""

    namespace: str = "batuta-system"
    release: str = "batuta"
    create_namespace: bool = True
    files: tuple[Path, ...] = ()
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Installation:
    """Everything that a cluster needs, in the order in which it is applied."""

    definitions: tuple[Manifest, ...]
    namespace: tuple[Manifest, ...]
    objects: tuple[Manifest, ...]
    notes: tuple[str, ...]


def plan_install(options: InstallOptions) -> Installation:
    """Builds all objects, or raises InputError with every problem of the options."""
    from batuta.backends.kube.install.chart import manifests, namespace, read_definitions

    release = _release(options)
    return Installation(
        definitions=tuple(read_definitions()),
        namespace=(namespace(release),) if options.create_namespace else (),
        objects=tuple(manifests(release)),
        notes=tuple(_notes(release)),
    )


def _release(options: InstallOptions) -> Release:
    import re

    from batuta import __version__
    from batuta.backends.kube.install.release import Release, read_values
    from batuta.spec.problem import InputError, Problem

    problems = [
        Problem(f"{flag} {name!r} is not a name", fix=f"a-z, 0-9 and dashes, {most} at most, a letter first")
        for flag, name, most in (
            ("--namespace", options.namespace, _LONGEST_NAMESPACE),
            ("--release", options.release, _LONGEST_RELEASE),
        )
        if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) or len(name) > most
    ]
    try:
        values = read_values(options.files, options.settings)
    except InputError as error:
        problems.extend(error.problems)
    if problems:
        raise InputError(problems)
    return Release(values, options.namespace, __version__, options.release)


def _notes(release: Release) -> Sequence[str]:
    """What is allowed and yet may be a mistake."""
    from batuta.policies.registry import policy_names
    from batuta.spec.problem import did_you_mean

    policy, known = release.values.config.policy, policy_names()
    if policy in known:
        return ()
    return (f"there is no policy {policy} here ({did_you_mean(policy, known)}); the image must have it",)
