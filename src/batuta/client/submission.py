"""What is submitted: a task as a file, text or mapping, or just a command; and what is said over it."""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batuta.spec.problem import InputError
from batuta.spec.text_file import read_text

LARGEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Submission:
    """One request for a job. Sent twice with the same key, it makes one job."""

    task: str | Mapping[str, Any]
    base_dir: str
    overrides: Mapping[str, Any] = field(default_factory=dict, repr=False)
    file: str = ""
    """Where the task was read from: problems are told with it."""
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    @staticmethod
    def of(
        task: Path | str | Mapping[str, Any] | None = None,
        command: str | Sequence[str] | None = None,
        overrides: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Submission:
        """A Path, or a text of one line, is a file; a text of several lines or a mapping is the task itself.

        A command that is one text is a line for the shell; several are arguments. It runs in this folder.
        """
        given = {name: value for name, value in (overrides or {}).items() if value not in (None, {})}
        rest: dict[str, Any] = {"overrides": given} | ({"key": key} if key else {})
        if (task is None) == (command is None):
            raise InputError.of("what shall run?", fix="a task, or a command; not both")
        if command is not None:
            line = command if isinstance(command, str) else _line(command)
            rest["overrides"] = {"workdir": str(Path.cwd())} | given
            return Submission({"run": line}, str(Path.cwd()), **rest)
        if isinstance(task, Mapping):
            return Submission(dict(task), str(Path.cwd()), **rest)
        if isinstance(task, str) and "\n" in task.strip():
            return Submission(task, str(Path.cwd()), **rest)
        path = Path(str(task)).expanduser()
        return Submission(read_text(path), str(path.absolute().parent), file=str(task), **rest)

    def body(self) -> bytes:
        """As the server takes it."""
        body = {"task": self.task, "overrides": dict(self.overrides), "base_dir": self.base_dir}
        data = json.dumps(body | ({"file": self.file} if self.file else {})).encode()
        if len(data) > LARGEST_BYTES:
            raise InputError.of(f"is larger than {LARGEST_BYTES >> 20} MiB", file=self.file)
        return data


def _line(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else shlex.join(words)
