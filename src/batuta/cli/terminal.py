"""Output: tables for people, JSON for programs, colours only on a terminal."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

NOTHING = "–"
STATE_STYLES = {
    "PENDING": "yellow",
    "SETTING_UP": "cyan",
    "RUNNING": "green",
    "RESIZING": "cyan",
    "PREEMPTED": "magenta",
    "SUCCEEDED": "blue",
    "FAILED": "red",
    "FAILED_SETUP": "red",
    "CANCELLED": "dim",
    "ready": "green",
    "cordoned": "yellow",
    "draining": "yellow",
    "lost": "red",
}


def print_json(value: Any) -> None:
    """An answer, a list of them, or plain values, as one JSON document."""
    from batuta.client.decoding import encode

    typer.echo(json.dumps(encode(value), indent=2, ensure_ascii=False))


def console(*, err: bool = False) -> Console:
    """As wide as the terminal; in a pipe as wide as need be, and without colours."""
    from rich.console import Console

    stream = sys.stderr if err else sys.stdout
    return (
        Console(stderr=err, highlight=False)
        if stream.isatty()
        else Console(stderr=err, highlight=False, width=10_000, no_color=True)
    )


def show(view: RenderableType) -> None:
    """Prints a table or a text. In a pipe no line is wrapped, and none ends in spaces."""
    out = console()
    if is_terminal():
        out.print(view)
        return
    with out.capture() as caught:
        out.print(view)
    typer.echo("\n".join(line.rstrip() for line in caught.get().splitlines()))


def is_terminal() -> bool:
    return sys.stdout.isatty()


def is_interactive() -> bool:
    """Whether somebody is there to answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def say(message: str) -> None:
    """What is meant for people, and not part of the result."""
    typer.echo(message, err=True)


def confirm(question: str, *, default: bool = False) -> None:
    """Asks, and leaves with 1 when the answer is no. Where nobody can answer, it wants to hear -y."""
    from batuta.spec.problem import InputError

    if not is_interactive():
        raise InputError.of(f"{question} Nobody is there to answer", fix="add -y")
    if not typer.confirm(question, default=default, err=True):
        say("nothing was done")
        raise typer.Exit(1)


@contextmanager
def spinner(text: str) -> Iterator[Any]:
    """Shows on a terminal that something takes a while; `update(text)` changes what it says."""
    if not sys.stderr.isatty():
        yield _Quiet()
        return
    with console(err=True).status(text) as status:
        yield status


class _Quiet:
    def update(self, text: str) -> None:
        """There is nobody to see it."""

    def stop(self) -> None:
        """The same."""


def state_text(state: str) -> Text:
    from rich.text import Text

    return Text(state, style=STATE_STYLES.get(state, ""))


def show_seconds(seconds: float | None) -> str:
    """`3m 20s`; a dash when it is not known."""
    from batuta.spec.duration import show_duration

    if seconds is None or math.isnan(seconds):
        return NOTHING
    return show_duration(float(round(seconds)) if seconds >= 1 else round(seconds, 2))


def show_ago(moment_s: float | None) -> str:
    """How long ago something was; `now` within a second."""
    if moment_s is None:
        return NOTHING
    passed_s = time.time() - moment_s
    return "now" if passed_s < 1 else f"{show_seconds(passed_s)} ago"


def show_moment(moment_s: float | None) -> str:
    """The time of day; the date too when it was another day."""
    if moment_s is None:
        return NOTHING
    then, now = time.localtime(moment_s), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M:%S", then)
