"""`batuta top`: the cluster live in a terminal."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.options import Output, OutputOption
from batuta.cli.server_options import HomeOption, connect

if TYPE_CHECKING:
    from batuta.cli.top_view import Picture
    from batuta.client.connection import Connection

    Decisions = deque[tuple[float | None, str]]

_KEPT = 20


def top(
    every: Annotated[
        float, typer.Option("--every", min=0.2, max=3600, help="Seconds between two looks.", metavar="S")
    ] = 1.0,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Watch GPUs, jobs and decisions live; q or Ctrl-C leaves. Without a terminal it prints once.

    Example: batuta top --every 2
    """
    from batuta.cli.terminal import is_terminal, print_json, show
    from batuta.cli.top_view import draw
    from batuta.client.decoding import encode

    with connect(home) as client:
        decisions: Decisions = deque(maxlen=_KEPT)
        last = _recall(client, decisions)
        picture = _look(client, decisions)
        if output is Output.JSON:
            print_json(
                {
                    "cluster": encode(picture.cluster),
                    "nodes": encode(picture.nodes),
                    "jobs": encode(picture.jobs),
                    "decisions": [{"time_s": when, "sentence": what} for when, what in picture.decisions],
                }
            )
        elif not is_terminal():
            show(draw(picture, 160, None))
        else:
            threading.Thread(target=_listen, args=(connect(home), last, decisions), daemon=True).start()
            with suppress(KeyboardInterrupt):
                _live(client, decisions, every)


def _live(client: Connection, decisions: Decisions, every_s: float) -> None:
    from rich.live import Live
    from rich.text import Text

    from batuta.cli.terminal import console
    from batuta.cli.top_view import draw
    from batuta.client.errors import NoServerError

    out = console()
    with _keys() as pressed, Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            try:
                view = draw(_look(client, decisions), out.width, out.height)
            except NoServerError as error:
                view = Text(str(error), style="red")
            live.update(view, refresh=True)
            if pressed(every_s) in ("q", "Q"):
                return


def _look(client: Connection, decisions: Decisions) -> Picture:
    from batuta.cli.top_view import Picture

    jobs = sorted(client.jobs(active=True, newest_first=True), key=lambda job: job.gpus.now == 0)
    return Picture(client.cluster(), client.nodes(), jobs, list(decisions))


def _recall(client: Connection, decisions: Decisions) -> int:
    """Decisions of the recent past, and the number of the last event."""
    from batuta.cli.event_view import tell_commands

    last = client.last_event()
    for event in client.recent_events(_KEPT, types=("Planned",)):
        decisions.extend((event.time_s, sentence) for sentence in tell_commands(event.data))
    return last


def _listen(client: Connection, last: int, decisions: Decisions) -> None:
    """In a thread of its own: adds decisions as they are made, until the server is gone for good."""
    from batuta.cli.event_view import tell_commands
    from batuta.client.errors import ClientError

    with suppress(ClientError), client:
        for event in client.events(after=last, types=("Planned",)):
            decisions.extend((event.time_s, sentence) for sentence in tell_commands(event.data))


@contextmanager
def _keys() -> Iterator[KeyReader]:
    """Single keys without Enter and without echo, where standard input is a terminal."""
    import termios
    import tty

    if not sys.stdin.isatty():
        yield KeyReader(None)
        return
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    try:
        tty.setcbreak(file)
        yield KeyReader(file)
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


class KeyReader:
    """Waits for a key, at most so long."""

    def __init__(self, file: int | None) -> None:
        self._file = file

    def __call__(self, within_s: float) -> str:
        import os
        import select
        import time

        if self._file is None:
            time.sleep(within_s)
            return ""
        ready, _, _ = select.select([self._file], [], [], within_s)
        return os.read(self._file, 1).decode("ascii", "replace") if ready else ""
