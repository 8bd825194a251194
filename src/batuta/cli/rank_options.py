"""Options of who runs jobs: when ranks hold one up, and what is done about it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from batuta.engine.stragglers.rank_watch import RankRules
    from batuta.spec.problem import Problem


class Stragglers(StrEnum):
    """The words of --stragglers."""

    MOVE = "move"
    REPORT = "report"
    OFF = "off"


HangAfterOption = Annotated[
    str,
    typer.Option(
        "--hang-after",
        help="A job that used to report and says nothing for so long is restarted; off: never.",
        metavar="TIME",
    ),
]
StragglersOption = Annotated[
    Stragglers,
    typer.Option("--stragglers", help="What becomes of jobs with a rank that is slower than the others."),
]


def read_hang_after(text: str, problems: list[Problem]) -> float:
    """Seconds; what is wrong with it is added to `problems`."""
    from dataclasses import replace

    from batuta.spec.problem import InputError
    from batuta.spec.task_ranks import parse_hang_after_s

    try:
        return parse_hang_after_s(text)
    except InputError as error:
        problems.extend(replace(one, message=f"--hang-after: {one.message}") for one in error.problems)
        return 0.0


def rank_rules(hang_after_s: float, stragglers: Stragglers) -> RankRules:
    """The rules that these options mean."""
    from batuta.engine.stragglers.rank_watch import RankRules, StragglerAction
    from batuta.prediction.hang import HangRules

    return RankRules(StragglerAction(stragglers.value), hang=HangRules(after_s=hang_after_s))
