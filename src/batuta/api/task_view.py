"""A stored task for eyes: much as its file was written, and no value of a secret."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import anyio.to_thread

from batuta.store.database import Database
from batuta.store.journal_reader import column_text

_HIDDEN = "<hidden>"
_REMEMBERED = 1_000


class ShownTasks:
    """Tasks never change, so those that are looked at again and again are read once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: OrderedDict[str, dict[str, Any]] = OrderedDict()

    async def of(self, job: str) -> dict[str, Any] | None:
        known = self._known.get(job)
        if known is not None:
            self._known.move_to_end(job)
            return known
        shown = await anyio.to_thread.run_sync(self._read, job)
        if shown is not None:
            self._known[job] = shown
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return shown

    def _read(self, job: str) -> dict[str, Any] | None:
        # What is committed, past the table's own `get`: that also looks at what is not, and would wait for
        # the disk while the engine commits. A job that is shown has been committed.
        row = self._database.row("SELECT task_json FROM tasks WHERE job_id = ?", column_text(job))
        return shown_task(row[0] if row else None)


def shown_task(stored: str | None) -> dict[str, Any] | None:
    """None when there is none, or it cannot be read any more."""
    if not stored:
        return None
    try:
        task = json.loads(stored)["task"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(task, dict):
        return None
    return {key: _VIEWS.get(key, _same)(value) for key, value in task.items()}


def _same(value: Any) -> Any:
    return value


def _pairs(value: list[list[str]]) -> dict[str, str]:
    return dict(value)


_VIEWS: dict[str, Callable[[Any], Any]] = {
    "envs": _pairs,
    "labels": _pairs,
    "secrets": lambda value: dict.fromkeys((name for name, _ in value), _HIDDEN),
    "file_mounts": lambda value: {mount["target"]: mount["source"] for mount in value},
}
