"""What a user submits: a task as a file, text or mapping, or a command; and its overrides."""

from __future__ import annotations

import difflib
import json
import shlex
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from batuta.spec.problem import InputError, read_text
from batuta.spec.task_env import Overrides

LARGEST_BYTES = 1 << 20
GPUS_OF_A_COMMAND = "1"  # on each node, of any type; a task file says itself what it needs


@dataclass(frozen=True, slots=True)
class Submission:
    """One request for a job. Sent twice with the same key, it makes one job."""

    task: str | Mapping[str, Any]  # empty where the task is that of another job
    base_dir: str  # where relative paths start: the folder from which it is submitted
    overrides: Mapping[str, Any] = field(default_factory=dict, repr=False)
    file: str = ""  # where the task was read from; problems name it
    file_dir: str = ""
    like: str = ""  # the id of the job whose task runs again
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    @staticmethod
    def of(
        task: Path | str | Mapping[str, Any] | None = None,
        command: str | Sequence[str] | None = None,
        overrides: Mapping[str, Any] | None = None,
        key: str | None = None,
        like: str | None = None,
    ) -> Submission:
        """A Path, or a text of one line, is a file; a text of several lines or a mapping is the task itself.

        A command that is one text is a line for the shell; several are arguments. It runs in this folder,
        with one GPU on each node unless `gpus` says otherwise ("0": on CPU).
        """
        check_types(task, command, overrides or {})
        given = {name: value for name, value in (overrides or {}).items() if value not in (None, {})}
        if isinstance(given.get("workdir"), Path):
            given["workdir"] = str(given["workdir"])
        rest: dict[str, Any] = {"overrides": given} | ({"key": key} if key else {})
        if sum(given is not None for given in (task, command, like)) != 1:
            raise InputError.of("what shall run?", fix="a task, a command, or that of an earlier job: one of them")
        if like is not None:
            return Submission("", str(Path.cwd()), like=like, **rest)
        if command is not None:
            words = [command] if isinstance(command, str) else command
            line = words[0] if len(words) == 1 else shlex.join(words)
            rest["overrides"] = {"workdir": str(Path.cwd()), "gpus": GPUS_OF_A_COMMAND} | given
            return Submission({"run": line}, str(Path.cwd()), **rest)
        if isinstance(task, Mapping):
            return Submission(dict(task), str(Path.cwd()), **rest)
        if isinstance(task, str) and "\n" in task.strip():
            return Submission(task, str(Path.cwd()), **rest)
        path = Path(str(task)).expanduser()
        beside = str(path.absolute().parent)
        return Submission(read_text(path), str(Path.cwd()), file=str(task), file_dir=beside, **rest)

    def body(self) -> bytes:
        what = {"like": self.like} if self.like else {"task": self.task}
        body: dict[str, Any] = what | {"overrides": dict(self.overrides), "base_dir": self.base_dir}
        if self.file:
            body |= {"file": self.file, "file_dir": self.file_dir}
        data = json.dumps(body).encode()
        if len(data) > LARGEST_BYTES:
            raise InputError.of(f"is larger than {LARGEST_BYTES >> 20} MiB", file=self.file)
        return data


def check_types(task: object, command: object, overrides: Mapping[str, object]) -> None:
    """Raises TypeError with everything that is not of a kind that a submit takes."""
    wrong: list[str] = []
    if task is not None and not isinstance(task, Path | str | Mapping):
        wrong.append(f"task must be a path, a text or a mapping, got {_kind(task)}")
    if command is not None and not _is_command(command):
        wrong.append(f"command must be a text or a list of texts, got {_kind(command)}")
    for name, value in overrides.items():
        if name not in _KNOWN:
            near = difflib.get_close_matches(name, _KNOWN, 1)
            hint = f": did you mean {near[0]}?" if near else f"; known are {', '.join(_KNOWN)}"
            wrong.append(f"{name} is not an argument of a submit{hint}")
        elif value is not None:
            wrong += _faults(name, value)
    if wrong:
        raise TypeError("; ".join(wrong))


def _faults(name: str, value: object) -> list[str]:
    wanted, kinds = _OVERRIDES.get(name, ("", (object,)))
    # To Python, true is a number.
    if not isinstance(value, kinds) or (isinstance(value, bool) and int in kinds):
        return [f"{name} must be {wanted}, got {_kind(value)}"]
    if name in ("env", "secret") and isinstance(value, Mapping):
        return [
            f"{name} {key} must be a text, got {type(text).__name__}"
            for key, text in value.items()
            if not isinstance(text, str)
        ]
    return []


def _is_command(command: object) -> bool:
    if isinstance(command, bytes) or not isinstance(command, Sequence):
        return False
    return isinstance(command, str) or all(isinstance(word, str) for word in command)


def _kind(value: object) -> str:
    return f"{type(value).__name__} {str(value)[:60]}"


_TEXT, _NUMBER = ("a text", (str,)), ("a whole number", (int,))
_VARIABLES = ("a mapping of names to texts", (Mapping,))
_OVERRIDES: dict[str, tuple[str, tuple[type, ...]]] = {
    "name": _TEXT,
    "gpus": ('a text such as "H100:4" or "2"', (str,)),
    "num_nodes": ('a whole number or "auto"', (int, str)),
    "min_nodes": _NUMBER,
    "max_nodes": _NUMBER,
    "queue": _TEXT,
    "priority": ("a whole number, or the name of a priority class", (int, str)),
    "workdir": ("a path", (str, Path)),
    "env": _VARIABLES,
    "secret": _VARIABLES,
    "trial": ("a mapping", (Mapping,)),
    "restartable": ("true or false", (bool,)),
    "image_id": _TEXT,
    "workdir_in_image": _TEXT,
}
"""What a submit may say over a task, in words and as types."""
_KNOWN = tuple(dict.fromkeys((*_OVERRIDES, *(one.name for one in fields(Overrides)))))
