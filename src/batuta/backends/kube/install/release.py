"""One installation: its values (files and `--set` over defaults, as in Helm), namespace and name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from batuta.backends.kube.install.values import Values
from batuta.backends.kube.settings import Locate, YamlSource, nowhere, validated
from batuta.spec.problem import InputError, Problem

Manifest: TypeAlias = dict[str, Any]

CHART = "batuta"
_DOT = re.compile(r"(?<!\\)\.")


@dataclass(frozen=True, slots=True)
class Release:
    """What `helm install NAME --namespace NAMESPACE --values …` says."""

    values: Values
    namespace: str
    version: str
    name: str = CHART
    managed_by: str = CHART


def read_values(files: Sequence[Path], settings: Sequence[str]) -> Values:
    """Later files win over earlier ones and `--set` over all; every problem at once."""
    problems: list[Problem] = []
    sources: list[YamlSource] = []
    for path in files:
        try:
            sources.append(YamlSource.read(path))
        except InputError as error:
            problems.extend(error.problems)
    said: list[tuple[list[str], Any]] = []
    for text in settings:
        try:
            said.append(_setting(text))
        except InputError as error:
            problems.extend(error.problems)
    if problems:
        raise InputError(problems)

    layers = [*(source.value for source in sources), *(_nested(name, value) for name, value in said)]

    def locate(path: Sequence[str | int]) -> tuple[str, int, int]:
        words = [str(word) for word in path]
        if any(words[: len(own)] == own[: len(words)] for own, _ in said):
            return "--set", 0, 0
        places = [place for source in reversed(sources) if (place := source.place(path)) is not None]
        return places[0] if places else ("", 0, 0)

    return overlaid(layers, locate)


def overlaid(layers: Sequence[Mapping[str, Any]], locate: Locate = nowhere) -> Values:
    merged: Any = Values().model_dump(mode="json", by_alias=True)
    for layer in layers:
        merged = _over(merged, layer)
    return validated(Values, merged, locate)


def _setting(text: str) -> tuple[list[str], Any]:
    """`a.b=value`; the value is read as YAML, so that 2 is a number and [a, b] a list."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InputError.of(f"--set {text!r} is not NAME=VALUE", fix="for example --set config.policy=afs-l")
    if "[" in name:
        raise InputError.of(
            f"--set {text!r}: an entry of a list cannot be set", fix="set the whole list, or use --values FILE"
        )
    words = [word.replace("\\.", ".").strip() for word in _DOT.split(name)]
    if not all(words):
        raise InputError.of(f"--set {text!r} has an empty part in its name")
    try:
        return words, yaml.safe_load(value) if value.strip() else ""
    except (yaml.YAMLError, ValueError):
        raise InputError.of(f"--set {text!r}: the value is not YAML", fix="put it into quotes") from None


def _nested(path: Sequence[str], value: Any) -> Any:
    for word in reversed(path):
        value = {word: value}
    return value


def _over(below: Any, above: Any) -> Any:
    """Mappings are merged, all else is replaced; null empties what has a default."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    merged = dict(below)
    for name, value in above.items():
        if value is not None:
            merged[name] = _over(merged.get(name), value)
        elif isinstance(merged.get(name), dict | list | str):
            merged[name] = type(merged[name])()
        elif name in merged:
            merged[name] = None  # a number or a truth has no emptiness: the check says so
    return merged
