"""What the command line overrides in a task file, and the task's environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from batuta.spec.problem import InputError, Problem, read_text
from batuta.spec.quantity import shown
from batuta.spec.yaml_reader import TaskReader, YamlNode, is_null

LONGEST_BYTES = 2**17 - 1  # Linux takes no longer `NAME=value`
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME_FIX = "letters, digits and _, not beginning with a digit"
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_LINE = re.compile(r"(?:export\s+)?([^=\s]*)\s*=\s*(.*)")
_QUOTED = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)\"""")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_OURS = frozenset(
    (
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"),
        *("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
        *("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS", "SKYPILOT_NUM_NODES", "SKYPILOT_NUM_GPUS_PER_NODE"),
        *("SKYPILOT_TASK_ID", "SKYPILOT_INTERNAL_JOB_ID", "SKYPILOT_USER", "SKYPILOT_CLUSTER_INFO"),
        *("SKYPILOT_SETUP_NODE_RANK", "SKYPILOT_SETUP_NODE_IPS", "SKYPILOT_SETUP_NUM_GPUS_PER_NODE"),
    )
)
_NOTHING: Mapping[str, str] = {}


def is_set_by_batuta(name: str) -> bool:
    return name in _OURS or name.startswith("BATUTA_")


def expand_variables(text: str, values: Mapping[str, str]) -> str:
    """`$NAME` and `${NAME}` replaced by their values; names without a value stay as they are."""
    return _VARIABLE.sub(lambda match: values.get(match[1] or match[2], match[0]), text)


def read_variables(
    reader: TaskReader, envs: YamlNode | None, secrets: YamlNode | None, overrides: Overrides
) -> tuple[dict[str, str], dict[str, str]]:
    """The variables and the secrets of the file, those of the command line over them. A null value has to be given."""
    public, hidden = _read_mapping(reader, envs, "envs"), _read_mapping(reader, secrets, "secrets")
    for name in [name for name in public if name in hidden]:
        reader.notes.append(f"envs.{name} is not used: the value in secrets is")
        del public[name]
    for name, value in {**overrides.env, **overrides.secret}.items():
        if not _NAME.fullmatch(name):
            reader.problems.append(Problem(f"--env: {shown(name)} is not a name for a variable", fix=_NAME_FIX))
        elif fault := _fault_of(name, value):
            reader.problems.append(Problem(f"--env {name} {fault}"))
    for name, value in overrides.env.items():
        # A name that the file declares a secret stays hidden, also when --env gives its value.
        (hidden if name in hidden else public)[name] = value
    for name, value in overrides.secret.items():
        public.pop(name, None)
        hidden[name] = value
    for found, what in ((public, "envs"), (hidden, "secrets")):
        for name, missing in found.items():
            if isinstance(missing, YamlNode):
                option = "--env" if what == "envs" else "--secret"
                reader.fault(missing, f"{what}.{name} has no value", f"write one, or give {option} {name}=…")
    for name in (name for name in (*public, *hidden) if is_set_by_batuta(name)):
        reader.notes.append(f"{name} is set by Batuta: the value in the task is not used")
    given = [{name: value for name, value in found.items() if isinstance(value, str)} for found in (public, hidden)]
    return given[0], given[1]


def _read_mapping(reader: TaskReader, node: YamlNode | None, what: str) -> dict[str, str | YamlNode]:
    """Values as they are written; the node stands in for one that is missing."""
    found: dict[str, str | YamlNode] = {}
    if node is None:
        return found
    is_secret = what == "secrets"
    if is_secret and not isinstance(node, yaml.MappingNode):
        # What stands there instead may well be one of them.
        message = "secrets must be a mapping of names to values: Batuta has no store of secrets"
        reader.fault(node, message, "NAME: null, and the value with --secret NAME")
        return found
    values = reader.mapping(node, what) or {}
    keys = {key.value: key for key, _ in node.value if isinstance(key, yaml.ScalarNode)} if values else {}
    for name, value in values.items():
        if not _NAME.fullmatch(name):
            called = "a key of secrets" if is_secret else shown(name)
            reader.fault(keys[name], f"{called} is not a name for a variable", _NAME_FIX)
        elif is_null(value):
            found[name] = value
        elif not isinstance(value, yaml.ScalarNode):
            reader.text(value, f"{what}.{name}")
        elif fault := _fault_of(name, value.value):
            reader.fault(value, f"{what}.{name} {fault}")
        else:
            found[name] = value.value
    return found


def _fault_of(name: str, value: str) -> str:
    if "\0" in value:
        return "holds a NUL character, which no variable can"
    try:
        length = len(f"{name}={value}".encode())
    except UnicodeEncodeError:
        return "holds half a character (a lone surrogate)"
    return f"is longer than {LONGEST_BYTES >> 10} KiB" if length > LONGEST_BYTES else ""


def parse_env_options(options: Sequence[str], environ: Mapping[str, str], flag: str = "--env") -> dict[str, str]:
    """`K=V` as it stands; `K` alone takes the value that the caller's own environment has."""
    values: dict[str, str] = {}
    problems: list[Problem] = []
    for option in options:
        name, equals, value = option.partition("=")
        if not _NAME.fullmatch(name):
            called = "what it begins with" if flag == "--secret" else shown(name)
            problems.append(Problem(f"{flag}: {called} is not a name for a variable", fix=_NAME_FIX))
        elif not equals and name not in environ:
            problems.append(Problem(f"{flag} {name}: your environment has no {name}", fix=f"{flag} {name}=VALUE"))
        else:
            values[name] = value if equals else environ[name]
    if problems:
        raise InputError(problems)
    return values


def parse_env_file(text: str, file: str) -> dict[str, str]:
    """A dotenv file: `NAME=value`, `export NAME=value`, quotes, comments; `$NAME` is no reference."""
    values: dict[str, str] = {}
    problems: list[Problem] = []
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None or not _NAME.fullmatch(match[1]):
            problems.append(Problem("is not NAME=value", file, number, fix=_NAME_FIX))
            continue
        value = _unquote(match[2])
        if value is None:
            problems.append(Problem(f"the value of {match[1]} has a quote that does not end", file, number))
        elif fault := _fault_of(match[1], value):
            problems.append(Problem(f"{match[1]} {fault}", file, number))
        else:
            values[match[1]] = value
    if problems:
        raise InputError(problems)
    return values


def _unquote(text: str) -> str | None:
    if text[:1] not in ("'", '"'):
        return re.split(r"(?:^|\s+)#", text, maxsplit=1)[0].strip()
    match = _QUOTED.match(text)
    rest = text[match.end() :].strip() if match else "x"
    if match is None or (rest and not rest.startswith("#")):
        return None
    if match[1] is not None:
        return match[1]
    return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), match[2])


@dataclass(frozen=True, slots=True)
class Overrides:
    """None leaves what the file says. `env` has the values of `--env-file` below those of `--env`."""

    name: str | None = None
    gpus: str | None = None
    num_nodes: int | str | None = None  # a number, or `auto`
    min_nodes: int | None = None
    max_nodes: int | None = None
    restartable: bool | None = None
    queue: str | None = None
    priority: int | str | None = None
    workdir: str | None = None
    trial: Mapping[str, Any] | None = None  # what `batuta trial` says: sizes, budget_s, each_s, priority, only
    env: Mapping[str, str] = field(default_factory=dict)
    secret: Mapping[str, str] = field(default_factory=dict, repr=False)


def read_env(
    options: Sequence[str] = (), env_files: Sequence[Path] = (), environ: Mapping[str, str] = _NOTHING
) -> dict[str, str]:
    """The values of all `--env-file` and `--env`: later ones win, options win over files."""
    values: dict[str, str] = {}
    problems: list[Problem] = []
    for path in (*env_files, None):
        try:
            found = parse_env_options(options, environ) if path is None else parse_env_file(read_text(path), str(path))
            values |= found
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return values
