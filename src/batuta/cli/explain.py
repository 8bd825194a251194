"""`batuta explain` and `batuta result`: why a job is as it is, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from batuta.cli.options import Output, OutputOption
from batuta.cli.server_options import HomeOption, JobArgument, connect

if TYPE_CHECKING:
    from rich.table import Table

    from batuta.client.answers import Chapter, Explanation, Suggestion

_WAITING = ("PENDING", "PREEMPTED")


def explain(job: JobArgument, output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Tell why a job waits, or has the size that it has.

    With the numbers behind it, the smallest changes that would start it, and what happened to it so far.

    Example: batuta explain resnet
    """
    from rich.text import Text

    from batuta.cli.terminal import print_json, show, spinner, state_text

    with connect(home) as client:
        known = client.job(job)
        told = client.explain(known)
        if told.state in _WAITING:
            with spinner("trying out what would start it"):
                told = replace(told, suggestions=client.suggestions(known))
    if output is Output.JSON:
        print_json(told)
        return
    reason = told.reason
    sentence = f": {reason.sentence}" if reason is not None and reason.sentence else ""
    show(Text.assemble(f"job {known.label} is ", state_text(told.state), sentence))
    if reason is not None and reason.evidence:
        numbers = ", ".join(f"{name} {_number(value)}" for name, value in reason.evidence.items())
        show(Text(f"{reason.code}: {numbers}" if reason.code else numbers, style="dim"))
    if told.quota_reserved is not None and not told.quota_reserved.status:
        show(Text(f"{_quota(told.quota_reserved.reason)}{_ahead(told.ahead)}", style="dim"))
    for sentence in _beliefs(told):
        show(Text(sentence, style="dim"))
    if told.trial is not None:
        from batuta.cli.trial import print_trial

        typer.echo("\nTrial runs")
        print_trial(told.trial)
    if told.suggestions:
        typer.echo("\nIt would start now")
        show(_ways(told.suggestions))
    if told.story:
        typer.echo()
        show(_story(told.story))


def _beliefs(told: Explanation) -> list[str]:
    """What was known of the job when it was submitted."""
    from batuta.cli.terminal import show_seconds

    found = [f"its size was left open: {told.size_choice.sentence}"] if told.size_choice is not None else []
    own = told.expected
    if own is not None:
        found.append(
            f"expected to take {show_seconds(own.p50_s)} on one GPU, {show_seconds(own.p10_s)} to "
            f"{show_seconds(own.p90_s)}, by {own.jobs} earlier {'job' if own.jobs == 1 else 'jobs'} "
            f"({own.source})"
        )
    return found


def _price(one: Suggestion) -> str:
    """What it starts with, who gives GPUs for it, and when that may come by itself."""
    from batuta.cli.terminal import show_seconds

    said = [f"with {one.gpus} {'GPU' if one.gpus == 1 else 'GPUs'}"]
    if one.stops:
        said.append(f"stops {', '.join(one.stops)}")
    if one.shrinks:
        said.append(f"shrinks {', '.join(one.shrinks)}")
    if one.within_s is not None:
        said.append(f"expected in {show_seconds(one.within_s)}")
    return f" ({'; '.join(said)})"


def _ways(suggestions: Sequence[Suggestion]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True, min_width=1)
    table.add_column(overflow="fold")
    for one in suggestions:
        table.add_row("", Text.assemble(one.sentence, (_price(one), "dim")))
    return table


def _quota(reason: str) -> str:
    """Kueue's word for what it waits for; in a sentence where quota is not what it lacks."""
    if reason == "TopologyPlacementFailed":
        return "quota would do, there is no place for it now"
    return f"QuotaReserved=False, {reason}"


def _ahead(count: int | None) -> str:
    """How many of its queue come before it."""
    if not count:
        return "" if count is None else "; it is the next of its queue"
    return f"; {count} {'job' if count == 1 else 'jobs'} of its queue {'is' if count == 1 else 'are'} ahead"


def _story(chapters: Sequence[Chapter]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from batuta.cli.terminal import show_moment

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for chapter in chapters:
        table.add_row(show_moment(chapter.time_s), Text(chapter.sentence))
    return table


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def result(job: JobArgument, output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """Print what a job returned.

    That is what its script gave to batuta.sdk.result: as JSON, a text as it is.

    Example: batuta result resnet
    """
    from batuta.cli.terminal import print_json
    from batuta.client.errors import ApiError, ClientError

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
        print_json(value)
    else:
        typer.echo(value)
