"""`batuta explain` and `batuta result`: why a job waits or has its size, and what it returned."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from batuta.apitypes.forecasts import Expected
from batuta.apitypes.resources import FINAL_STATES, Explanation, SuggestedChange
from batuta.cli import output as out
from batuta.cli.options import HomeOption, JobArgument, Output, OutputOption, connect
from batuta.cli.trial import print_trial
from batuta.client.errors import ApiError, ClientError

if TYPE_CHECKING:
    from rich.table import Table


_WAITING = ("PENDING", "PREEMPTED")


def explain(job: JobArgument, output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Tell why a job waits, or has the size that it has.

    With the numbers behind it, the smallest changes that would start it, and what happened to it so far.

    Example: batuta explain resnet
    """
    with connect(home) as client:
        known = client.job(job)
        explanation = client.explain(known)
        if explanation.state in _WAITING:
            with out.spinner("trying out what would start it"):
                found = client.suggestions(known)
                # The search for suggestions also forecasts the start.
                explanation = replace(client.explain(known), suggestions=found)
    if output is Output.JSON:
        out.print_json(explanation)
        return
    reason = explanation.reason
    sentence = f": {reason.sentence}" if reason is not None and reason.sentence else ""
    out.print_rich(out.assembled(f"job {known.label} is ", out.state_text(explanation.state), sentence))
    if reason is not None and reason.evidence:
        numbers = ", ".join(f"{name} {_number(value)}" for name, value in reason.evidence.items())
        out.print_rich(f"{reason.code}: {numbers}" if reason.code else numbers, "dim")
    if explanation.quota_reserved is not None and not explanation.quota_reserved.status:
        out.print_rich(f"{_quota(explanation.quota_reserved.reason)}{_ahead(explanation.ahead)}", "dim")
    checkpoint, is_said = explanation.checkpoint, reason is not None and reason.code == "KEEPS_SIZE"
    if checkpoint is not None and checkpoint.sentence and explanation.state not in _WAITING and not is_said:
        out.print_rich(f"{checkpoint.sentence}.", "yellow")
    for sentence in _predictions(explanation):
        out.print_rich(sentence, "dim")
    if explanation.trial is not None:
        typer.echo("\nTrial runs")
        print_trial(explanation.trial)
    if explanation.suggestions:
        typer.echo("\nIt would start now")
        out.print_rich(_suggestion_table(explanation.suggestions))
    if explanation.story:
        typer.echo()
        out.print_rich(out.facts_table((out.format_time(one.time_s), one.sentence) for one in explanation.story))


def _predictions(explanation: Explanation) -> list[str]:
    found = (
        [f"its size was left open: {explanation.size_choice.sentence}"] if explanation.size_choice is not None else []
    )
    if explanation.stands_for:
        found.append(f"virtual GPUs stand for {' or '.join(explanation.stands_for)}")
    if explanation.endpoints and explanation.state not in FINAL_STATES:
        found.append(f"its ports are reached at {', '.join(explanation.endpoints)} while it runs")
    if explanation.start is not None and explanation.start.p50_s is not None and explanation.state in _WAITING:
        coarse = ", coarse: a finer forecast is being computed" if explanation.start_coarse else ""
        found.append(f"expected to start {_when(explanation.start)} (batuta eta{coarse})")
    own = explanation.expected
    if own is not None:
        found.append(
            f"expected to take {out.format_seconds(own.p50_s)} on one GPU, {out.format_seconds(own.p10_s)} to "
            f"{out.format_seconds(own.p90_s)}, by {own.jobs} earlier {'job' if own.jobs == 1 else 'jobs'} "
            f"({own.source})"
        )
    return found


def _when(start: Expected) -> str:
    now_s = time.time()
    early, late = (None if at is None else max(0.0, at - now_s) for at in (start.p50_s, start.p90_s))
    latest = "" if late is None else f", at the latest in {out.format_seconds(late)}"
    return f"in {out.format_seconds(early)}{latest}"


def _suggestion_effects(one: SuggestedChange) -> str:
    """Return the GPUs it would start with, the jobs that stop or shrink, and when it may come by itself."""
    effects = [f"with {out.format_gpus(one.gpus)}"]
    if one.stops:
        effects.append(f"stops {', '.join(one.stops)}")
    if one.shrinks:
        effects.append(f"shrinks {', '.join(one.shrinks)}")
    if one.within_s is not None:
        effects.append(f"expected in {out.format_seconds(one.within_s)}")
    return f" ({'; '.join(effects)})"


def _suggestion_table(suggestions: Sequence[SuggestedChange]) -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True, min_width=1)
    table.add_column(overflow="fold")
    for one in suggestions:
        table.add_row("", out.assembled(one.sentence, (_suggestion_effects(one), "dim")))
    return table


def _quota(reason: str) -> str:
    """Return Kueue's condition; a sentence where the job lacks a placement and not quota."""
    if reason == "TopologyPlacementFailed":
        return "quota would do, there is no place for it now"
    return f"QuotaReserved=False, {reason}"


def _ahead(count: int | None) -> str:
    if not count:
        return "" if count is None else "; it is the next of its queue"
    return f"; {count} {'job' if count == 1 else 'jobs'} of its queue {'is' if count == 1 else 'are'} ahead"


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def result(job: JobArgument, output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Print what a job returned.

    That is what its script gave to batuta.sdk.result: as JSON, a text as it is.

    Example: batuta result resnet
    """
    with connect(home) as client:
        known = client.job(job)
        try:
            value = client.result(known)
        except ApiError as error:
            if error.status != 404:
                raise
            ending = "" if known.is_over else f" yet: it is {known.state}"
            raise ClientError(f"job {known.label} gave no result{ending}") from None
    if output is Output.JSON or not isinstance(value, str):
        out.print_json(value)
    else:
        typer.echo(value)
