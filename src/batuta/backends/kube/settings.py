"""What people write in camelCase, checked as a whole: every problem at once, with its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from batuta.spec.problem import InputError, Problem, did_you_mean


class Settings(BaseModel):
    """A mapping that people write in camelCase; an unknown key is an error."""

    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", frozen=True, strict=True, validate_default=True
    )


Model = TypeVar("Model", bound=Settings)
Path: TypeAlias = Sequence[str | int]
Locate: TypeAlias = Callable[[Path], tuple[str, int, int]]
"""Where the value at a path was written: file, line, column."""


def nowhere(path: Path) -> tuple[str, int, int]:
    """For values that were written in no file."""
    return "", 0, 0


def validated(model: type[Model], value: Any, locate: Locate = nowhere) -> Model:
    """The value as a model, or an InputError with every problem, its place and what would be right."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = [_problem(model, fault, locate) for fault in error.errors(include_url=False)]
        raise InputError(problems) from None


def _problem(model: type[Settings], fault: Any, locate: Locate) -> Problem:
    path: Path = fault["loc"]
    place, name = locate(path), ".".join(map(str, path))
    if fault["type"] == "extra_forbidden":
        fix = did_you_mean(str(path[-1]), _known_keys(model, path[:-1]))
        return Problem(f"unknown key {name}", *place, fix=fix)
    said = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "string_pattern_mismatch":
        said = f"{fault['input']!r} does not match {fault['ctx']['pattern']}"
    elif fault["type"] != "value_error":
        found = "" if isinstance(fault["input"], dict | list) else f", found {fault['input']!r}"
        said = said[0].lower() + said[1:] + found
    return Problem(f"{name}: {said}" if name else said, *place)


def _known_keys(model: type[Settings], path: Path) -> list[str]:
    """The keys that may stand in the mapping at a path."""
    for word in path:
        field = next((one for one in model.model_fields.values() if one.alias == word), None)
        inner = field.annotation if field is not None else None
        if not (isinstance(inner, type) and issubclass(inner, Settings)):
            return []
        model = inner
    return [field.alias or name for name, field in model.model_fields.items()]
