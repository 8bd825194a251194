"""The Helm chart, rendered without Helm: what its templates make of the values of a release.

The chart is the only source of what is installed. It lies beside this file in a wheel, and in deploy/ in the
repository. Here are Helm's own objects (`.Values`, `.Release`, `.Chart`, `.Files`) and those of its functions
that the chart uses.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final

import yaml

from batuta.backends.kube.install.go_template import Function, TemplateError, Templates, as_text
from batuta.backends.kube.install.release import Manifest, Release
from batuta.backends.kube.operator_config import OperatorConfig
from batuta.spec.problem import InputError

ORDER: Final = (
    "serviceaccount.yaml",
    "clusterrole.yaml",
    "role.yaml",
    "user-roles.yaml",
    "admission-policy.yaml",
    "configmap.yaml",
    "tls.yaml",
    "queues.yaml",
    "persistentvolumeclaim.yaml",
    "networkpolicy.yaml",
    "service.yaml",
    "deployment.yaml",
    "poddisruptionbudget.yaml",
    "device-plugin.yaml",
    "servicemonitor.yaml",
    "prometheusrule.yaml",
    "dashboards.yaml",
    "agent.yaml",
    "log-collector.yaml",
)
"""Templates, what others need first. Helm sorts by kind; in a List, kubectl applies what stands first."""
CONFIG_FILE: Final = "config.yaml"
"""The operator's configuration in its ConfigMap."""

_HERE: Final = Path(__file__).resolve().parent
_FOLDERS: Final = (_HERE / "helm", *(above / "deploy/helm/batuta" for above in _HERE.parents[4:5]))


@cache
def chart_folder() -> Path:
    folder = next((one for one in _FOLDERS if one.is_dir()), None)
    if folder is None:
        raise FileNotFoundError(f"this installation of Batuta lacks its Helm chart: {_FOLDERS[0]}")
    return folder


def read_definitions() -> list[Manifest]:
    """All CustomResourceDefinitions, by the name of their file."""
    return [yaml.safe_load(path.read_text("utf-8")) for path in sorted(chart_folder().glob("crds/*.yaml"))]


def manifests(release: Release) -> list[Manifest]:
    """What the chart's templates make of the values. CRDs and the namespace are not part of it."""
    data = _objects(release)
    texts = [_templates().render(name, data) for name in ORDER]
    found = [one for text in texts for one in yaml.safe_load_all(text) if one is not None]
    for one in found:
        if one["kind"] == "ConfigMap" and CONFIG_FILE in one.get("data", {}):
            # Checked here, so that the operator never finds what it would refuse.
            OperatorConfig.model_validate(yaml.safe_load(one["data"][CONFIG_FILE]))
    return found


def namespace(release: Release) -> Manifest:
    """The operator's namespace, in which nothing may run that has more rights than it needs.

    No template: Helm makes a namespace itself, before it installs a chart.
    """
    # What runs on nodes needs folders of the node, which no level but the last one allows.
    values = release.values
    on_nodes = values.device_plugin.enabled or values.agent.enabled or values.log_collector.enabled
    level = "privileged" if on_nodes else "restricted"
    labels = yaml.safe_load(_templates().render("batuta.labels", _objects(release)))
    labels |= {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn", "audit")}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": release.namespace, "labels": labels}}


@cache
def _templates() -> Templates:
    """All templates but the text that Helm shows after an installation."""
    found = Templates(FUNCTIONS)
    for path in sorted((chart_folder() / "templates").iterdir()):
        if path.suffix in (".yaml", ".tpl"):
            found.read(path.name, path.read_text("utf-8"))
    return found


def _objects(release: Release) -> Manifest:
    about = yaml.safe_load((chart_folder() / "Chart.yaml").read_text("utf-8"))
    return {
        "Values": release.values.model_dump(mode="json", by_alias=True),
        "Release": {"Name": release.name, "Namespace": release.namespace, "Service": release.managed_by},
        "Chart": {"Name": about["name"], "Version": about["version"], "AppVersion": release.version},
        "Files": {"Get": lambda name: (chart_folder() / name).read_text("utf-8"), "Glob": _glob_files},
    }


def _glob_files(pattern: str) -> Mapping[str, str]:
    folder = chart_folder() / PurePosixPath(pattern).parent
    names = sorted(path.name for path in folder.iterdir() if fnmatch(path.name, PurePosixPath(pattern).name))
    return {"AsConfig": _to_yaml({name: (folder / name).read_text("utf-8") for name in names})}


def _to_yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=True, allow_unicode=True, width=2**31).removesuffix("\n")


def _quote(value: Any) -> str:
    """In double quotes, as Go writes it and YAML reads it."""
    return json.dumps(as_text(value), ensure_ascii=False)


def _indented(width: int, text: str) -> str:
    """On lines of its own, every one of which is indented, also an empty one."""
    margin = "\n" + " " * width
    return margin + text.replace("\n", margin)


def _merged(first: Mapping[str, Any], *others: Mapping[str, Any]) -> Manifest:
    """A mapping is merged into a mapping; what is there and not empty stays as it is."""
    found = dict(first)
    for other in others:
        for name, value in other.items():
            inner = found.get(name)
            if isinstance(inner, Mapping) and isinstance(value, Mapping):
                found[name] = _merged(inner, value)
            elif not inner:
                found[name] = value
    return found


def _set(mapping: Manifest, name: str, value: Any) -> Manifest:
    mapping[name] = value
    return mapping


def _printf(template: str, *values: Any) -> str:
    """%s, %d and %q."""
    if len(signs := re.findall("%(.)", template)) != len(values) or not {*signs} <= {*"sdq"}:
        raise TemplateError(f"printf {template!r} with {len(values)} values")
    words = iter(values)
    return re.sub("%(.)", lambda sign: (_quote if sign[1] == "q" else as_text)(next(words)), template)


def _fail(message: str) -> str:
    raise InputError.of(message)


FUNCTIONS: Final[Mapping[str, Function]] = {
    "and": lambda *values: next((one for one in values if not one), values[-1]),
    "or": lambda *values: next((one for one in values if one), values[-1]),
    "not": lambda value: not value,
    "eq": lambda value, *others: value in others,
    "ne": lambda one, other: one != other,
    "lt": lambda one, other: one < other,
    "gt": lambda one, other: one > other,
    "int": int,
    "default": lambda usual, value: value or usual,
    "ternary": lambda yes, no, asked: yes if asked else no,
    "dict": lambda *words: dict(zip(words[::2], words[1::2], strict=True)),
    "set": _set,
    "omit": lambda mapping, *names: {name: value for name, value in mapping.items() if name not in names},
    "hasKey": lambda mapping, name: name in mapping,
    "merge": _merged,
    "list": lambda *values: list(values),
    "prepend": lambda values, value: [value, *values],
    "tuple": lambda *values: list(values),
    "has": lambda value, values: value in values,
    "join": lambda between, words: between.join(words),
    "contains": lambda part, text: part in text,
    "replace": lambda old, new, text: text.replace(old, new),
    "regexReplaceAll": lambda pattern, text, new: re.sub(pattern, new, text),
    "upper": str.upper,
    "trunc": lambda length, text: text[:length],
    "printf": _printf,
    "quote": _quote,
    "nindent": _indented,
    "dir": lambda path: str(PurePosixPath(path).parent),
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "toYaml": _to_yaml,
    "fromYaml": yaml.safe_load,
    "fail": _fail,
}
"""By name, with the arguments in the order in which Go, Sprig and Helm take them."""
