"""What `batuta install` is about: values from the command line become the objects of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batuta.backends.kube.install.release import Manifest, Release


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
    from batuta.backends.kube.install.definitions import read_definitions
    from batuta.backends.kube.install.manifests import manifests, namespace

    release = _release(options)
    return Installation(
        definitions=tuple(read_definitions()),
        namespace=(namespace(release),) if options.create_namespace else (),
        objects=tuple(manifests(release)),
        notes=tuple(_notes(release)),
    )


def _release(options: InstallOptions) -> Release:
    import re

    from batuta.backends.kube.install.reading import read_values
    from batuta.backends.kube.install.release import Release
    from batuta.bootstrap import version
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
    return Release(values, options.namespace, version(), options.release)


def _notes(release: Release) -> Sequence[str]:
    """What is allowed and yet may be a mistake."""
    from batuta.policies.registry import policy_names
    from batuta.spec.problem import did_you_mean

    policy, known = release.values.config.policy, policy_names()
    if policy in known:
        return ()
    return (f"there is no policy {policy} here ({did_you_mean(policy, known)}); the image must have it",)
