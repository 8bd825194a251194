"""The paths of a task: its working directory, and what it wants copied or linked to where it runs.

They are local. A relative path starts at the folder from which the command was called, as it does for `sky`;
what is not there is looked for beside the task file, with a note.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import yaml

from batuta.spec.quantity import shown
from batuta.spec.task_env import expand_variables
from batuta.spec.yaml_reader import TaskReader, YamlNode

LONGEST_SHOWN = 300
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_MOUNT_KEYS = ("source",)
_BUCKET_KEYS = ("name", "store", "persistent", "mode", "mount_options", "type", "config", "_force_delete")
_LOCAL_FIX = "give a local path, or fetch it in setup"


class PathKind(Enum):
    """What is at a path."""

    FILE = "a file"
    FOLDER = "a folder"
    NOTHING = "nothing"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Mount:
    """What lies at `source` is to be seen at `target` by every replica."""

    target: str
    source: str


def is_relative_target(target: str) -> bool:
    """Whether a mount lies in the working directory, wherever that is."""
    return not target.startswith(("/", "~"))


def probe_disk(path: Path) -> tuple[PathKind, Path]:
    """What this process finds at a path, and where that really is, links followed."""
    try:
        real = path.resolve(strict=True)
        is_folder, is_file = real.is_dir(), real.is_file()
    except PermissionError:
        return PathKind.UNREADABLE, path
    except (OSError, ValueError, RuntimeError):
        return PathKind.NOTHING, path
    if not os.access(real, os.R_OK | os.X_OK if is_folder else os.R_OK):
        return PathKind.UNREADABLE, real
    return (PathKind.FOLDER if is_folder else PathKind.FILE if is_file else PathKind.NOTHING), real


@dataclass(frozen=True, slots=True)
class PathRules:
    """How paths are understood, and which are allowed."""

    base: Path | None = None  # where relative paths start; None refuses them
    home: Path | None = None  # what `~` is; None refuses it
    roots: tuple[Path, ...] = ()  # folders that a path has to lie in, links followed; empty allows all that can be read
    probe: Callable[[Path], tuple[PathKind, Path]] | None = probe_disk  # None takes paths on trust
    no_mounts: Callable[[], str] | None = None
    """Asked why a job cannot have mounts outside of its working directory; None where it always can."""
    beside: Path | None = None
    """The folder of the task file: where a relative path is looked for that is not below `base`."""


def read_workdir(
    reader: TaskReader, node: YamlNode | None, given: str | None, rules: PathRules, envs: Mapping[str, str]
) -> str:
    """The absolute path of the working directory; empty when there is none, or a problem.

    The path `given` on the command line stands in for that of the file.
    """
    if given is not None:
        return _read_path(reader, None, "workdir", expand_variables(given, envs), rules, folder=True)
    if isinstance(node, yaml.MappingNode):
        reader.fault(node, "workdir must be a folder, found a mapping", "clone the repository and give its path")
        return ""
    text = reader.text(node, "workdir")
    found = _read_path(reader, node, "workdir", expand_variables(text, envs), rules, folder=True) if text else ""
    if found and rules.probe is not None and rules.probe(Path(found, ".skyignore"))[0] is PathKind.FILE:
        reader.notes.append(".skyignore is not used: nothing is copied, the job runs in the workdir itself")
    return found


def read_mounts(
    reader: TaskReader, node: YamlNode | None, rules: PathRules, envs: Mapping[str, str]
) -> tuple[Mount, ...]:
    """`file_mounts` in order of the file. `$NAME` is filled in from `envs` on both sides."""
    mounts: dict[str, Mount] = {}
    for written, value in (reader.mapping(node, "file_mounts") or {}).items():
        what = f"file_mounts.{written[:60]}"
        target = expand_variables(written.strip(), envs)
        if not target.strip("/") or ".." in target.split("/") or "\0" in target or _URI.match(target):
            message = f"{what}: {shown(target, LONGEST_SHOWN)} is no place to mount"
            reader.fault(value, message, "a path below /, ~ or the workdir")
        elif target in ("~", "~/"):
            reader.fault(value, f"{what}: a whole home is no place to mount", "a path below ~")
        elif target in mounts:
            reader.fault(value, f"{what}: something is mounted at {shown(target, LONGEST_SHOWN)} already")
        elif source := _read_source(reader, value, what, rules, envs):
            mounts[target] = Mount(target, source)
    return tuple(mounts.values())


def _read_source(reader: TaskReader, node: YamlNode, what: str, rules: PathRules, envs: Mapping[str, str]) -> str:
    if isinstance(node, yaml.MappingNode):
        values = reader.section(node, what, (*_MOUNT_KEYS, *_BUCKET_KEYS))
        if "source" not in values:
            reader.fault(node, f"{what} has no source: buckets and volumes cannot be made here", _LOCAL_FIX)
            return ""
        if bucket := [key for key in _BUCKET_KEYS if key in values]:
            message = f"{what} asks for a bucket or a volume ({', '.join(bucket)}), which cannot be made here"
            reader.fault(node, message, "TARGET: PATH with a local path, which is mounted itself")
            return ""
        node = values["source"]
    if isinstance(node, yaml.SequenceNode):
        if len(node.value) != 1:
            reader.fault(node, f"{what} has {len(node.value)} sources", "one source for each mount")
            return ""
        node = node.value[0]
    text = reader.text(node, what)
    return _read_path(reader, node, what, expand_variables(text, envs), rules, folder=False) if text else ""


def _read_path(
    reader: TaskReader, node: YamlNode | None, what: str, text: str, rules: PathRules, *, folder: bool
) -> str:
    """The absolute path that a text means; empty, with a problem, when it cannot be used."""
    asked = f"{what} {shown(text, LONGEST_SHOWN)}"
    if _URI.match(text):
        reader.blame(node, f"{what} is in a cloud ({shown(text, LONGEST_SHOWN)})", _LOCAL_FIX)
    elif "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        reader.blame(node, f"{what} holds a NUL character or is not UTF-8", "a path that is plain text")
    elif text == "~" or text.startswith("~/"):
        if rules.home is not None:
            return _checked(reader, node, what, Path(str(rules.home) + text[1:]), rules, folder=folder)
        reader.blame(node, f"{asked} begins with ~, which is not known here", "an absolute path")
    elif text.startswith("~"):
        reader.blame(node, f"{asked} is in another user's home", "a path of your own")
    elif text.startswith("/"):
        return _checked(reader, node, what, Path(text), rules, folder=folder)
    elif rules.base is None:
        reader.blame(node, f"{asked} is relative", "an absolute path")
    else:
        return _checked(reader, node, what, _relative_path(reader, what, text, rules.base, rules), rules, folder=folder)
    return ""


def _relative_path(reader: TaskReader, what: str, text: str, base: Path, rules: PathRules) -> Path:
    """Below where the command was called, else beside the task file; noted where both could be meant."""
    called = base / text
    if rules.beside is None or rules.probe is None or os.path.realpath(rules.beside) == os.path.realpath(base):
        return called
    beside = rules.beside / text
    here, real = rules.probe(called)
    there, other = rules.probe(beside)
    if there is PathKind.NOTHING or not _is_allowed(rules, other) or real == other:
        return called
    asked = shown(text, LONGEST_SHOWN)
    if here is PathKind.NOTHING:
        note = f"{what} {asked} is not in {base}, where the command was called: {beside} is used"
    else:
        way = "--workdir" if what == "workdir" else "an absolute path"
        note = f"{what} {asked} is {called}, from where the command was called; {way} chooses {beside}"
    reader.notes.append(f"{note}, beside the task file")
    return beside if here is PathKind.NOTHING else called


def _is_allowed(rules: PathRules, real: Path) -> bool:
    return not rules.roots or any(real.is_relative_to(os.path.realpath(root)) for root in rules.roots)


def _checked(
    reader: TaskReader, node: YamlNode | None, what: str, path: Path, rules: PathRules, *, folder: bool
) -> str:
    if rules.probe is None:
        return str(path)
    found, real = rules.probe(path)
    asked = f"{what} {shown(str(path), LONGEST_SHOWN)}"
    fix = f"{'a folder' if folder else 'a file or folder'} that you may read"
    if not _is_allowed(rules, real):
        reader.blame(node, f"{asked} lies outside of what you may use", f"below {', '.join(map(str, rules.roots))}")
    elif found is PathKind.NOTHING:
        missing = re.search(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)", str(path))
        reader.blame(node, f"{asked} is not there", f"{missing[1]} is not in envs" if missing else fix)
    elif found is PathKind.UNREADABLE:
        reader.blame(node, f"{asked} cannot be read", fix)
    elif folder and found is not PathKind.FOLDER:
        reader.blame(node, f"{asked} is {found.value}", fix)
    else:
        # Where only some folders are allowed, the real path is kept: a link may be turned elsewhere later.
        return str(real if rules.roots else path)
    return ""
