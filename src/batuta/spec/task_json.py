"""A task as one line of JSON for the journal: nothing is lost, and equal tasks give equal lines."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

from batuta.spec.problem import InputError, Problem
from batuta.spec.task import Task

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SCHEMA = 1
"""Goes up when a key is renamed, removed or changes its meaning; a new key with a default needs none."""


def task_to_json(task: Task) -> str:
    """Secrets are in it, in clear: who stores it has to guard it. `task.without_secrets()` is for eyes."""
    return f'{{"schema":{SCHEMA},"task":{_adapter().dump_json(task).decode()}}}'


def task_from_json(text: str) -> Task:
    """What `task_to_json` was given. Raises InputError for everything else."""
    from pydantic import ValidationError  # noqa: PLC0415 - takes a tenth of a second, which few commands need

    try:
        stored = json.loads(text)
        schema = stored.get("schema") if isinstance(stored, dict) else None
        inner = json.dumps(stored["task"]) if schema == SCHEMA else ""
    except (ValueError, KeyError, RecursionError):
        raise InputError.of("is not a stored task") from None
    if schema != SCHEMA or isinstance(schema, bool):
        message = f"is not a stored task, or one of another schema: {str(schema)[:40]}"
        raise InputError.of(message, fix=f"this Batuta reads schema {SCHEMA}")
    try:
        return _adapter().validate_json(inner, strict=True)
    except ValidationError as error:
        raise InputError(
            [
                Problem(f"{'.'.join(map(str, one['loc']))}: {one['msg']}")
                for one in error.errors(include_url=False, include_input=False)
            ]
        ) from None


@cache
def _adapter() -> TypeAdapter[Task]:
    from pydantic import TypeAdapter  # noqa: PLC0415 - see above

    return TypeAdapter(Task)
