"""`batuta top`: GPUs, jobs and decisions live in a terminal."""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from batuta.apitypes.resources import Cluster, Gpu, Job, Node
from batuta.cli import output as out
from batuta.cli.events import command_sentences
from batuta.cli.job_view import columns_for
from batuta.cli.options import HomeOption, Output, OutputOption, connect, option
from batuta.client.connection import Connection
from batuta.client.errors import ClientError, NoServerError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    Decisions = deque[tuple[float | None, str]]

_SHOWN_DECISIONS = 20
COLOURS = ("blue", "green", "magenta", "cyan", "yellow", "bright_blue", "bright_green", "bright_magenta")
HIDDEN_COLUMNS = ("USER", "QUEUE", "SUBMITTED", "RESTARTS")
_CELL = 4


def top(
    every: Annotated[float, option("Seconds between two looks.", "S", min=0.2, max=3600)] = 1.0,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Watch GPUs, jobs and decisions live; q or Ctrl-C leaves. Without a terminal it prints once.

    Example: batuta top --every 2
    """
    with connect(home) as client:
        decisions: Decisions = deque(maxlen=_SHOWN_DECISIONS)
        last = _read_recent_decisions(client, decisions)
        view = _read_view(client, decisions)
        if output is Output.JSON:
            shown = [{"time_s": time_s, "sentence": sentence} for time_s, sentence in view.decisions]
            out.print_json({"cluster": view.cluster, "nodes": view.nodes, "jobs": view.jobs, "decisions": shown})
        elif not out.is_terminal():
            out.print_rich(render(view, 160, None))
        else:
            threading.Thread(target=_follow_decisions, args=(connect(home), last, decisions), daemon=True).start()
            with suppress(KeyboardInterrupt):
                _live(client, decisions, every)


def _live(client: Connection, decisions: Decisions, every_s: float) -> None:
    from rich.live import Live

    terminal = out.console()
    with _keys() as pressed, Live(console=terminal, screen=True, auto_refresh=False) as live:
        while True:
            try:
                screen = render(_read_view(client, decisions), terminal.width, terminal.height)
            except NoServerError as error:
                screen = out.styled(str(error), style="red")
            live.update(screen, refresh=True)
            if pressed(every_s) in ("q", "Q"):
                return


def _read_view(client: Connection, decisions: Decisions) -> ClusterView:
    jobs = sorted(client.jobs(active=True, newest_first=True), key=lambda job: job.gpus.now == 0)
    return ClusterView(client.cluster(), client.nodes(), jobs, list(decisions))


def _read_recent_decisions(client: Connection, decisions: Decisions) -> int:
    """Add recent decisions, and return the number of the last event."""
    last = client.last_event()
    for event in client.recent_events(_SHOWN_DECISIONS, types=("Planned",)):
        decisions.extend((event.time_s, sentence) for sentence in command_sentences(event.data))
    return last


def _follow_decisions(client: Connection, last: int, decisions: Decisions) -> None:
    """Add decisions as the scheduler makes them, in a thread, until the server ends."""
    with suppress(ClientError), client:
        for event in client.events(after=last, types=("Planned",)):
            decisions.extend((event.time_s, sentence) for sentence in command_sentences(event.data))


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Read single keys without Enter and without echo, if standard input is a terminal.

    What it yields waits for a key, at most so many seconds.
    """
    file = sys.stdin.fileno() if sys.stdin.isatty() else None

    def pressed(within_s: float) -> str:
        if file is None:
            time.sleep(within_s)
            return ""
        ready, _, _ = select.select([file], [], [], within_s)
        return os.read(file, 1).decode("ascii", "replace") if ready else ""

    if file is None:
        yield pressed
        return
    before = termios.tcgetattr(file)
    try:
        tty.setcbreak(file)
        yield pressed
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster at one time, as `batuta top` shows it."""

    cluster: Cluster
    nodes: Sequence[Node]
    jobs: Sequence[Job]
    decisions: Sequence[tuple[float | None, str]]


def render(view: ClusterView, width: int, height: int | None) -> RenderableType:
    """Return the view for a screen of this size; all of it where `height` is None."""
    from rich.console import Group

    head, map_lines = _header(view.cluster), _map(view.nodes, width)
    decisions = [_decision(*one) for one in view.decisions[-(6 if height is None else min(6, height // 5)) :]]
    jobs = list(view.jobs)
    more = 0
    if height is not None:
        # A quarter of the screen is the most that the map may take; jobs get what is left.
        map_lines = map_lines[: max(3, height // 4)]
        room = max(1, height - len(head) - len(map_lines) - len(decisions) - 6)
        more, jobs = max(0, len(jobs) - room), jobs[:room]
    columns = [column for column in columns_for(jobs) if column.title not in HIDDEN_COLUMNS]
    table, _ = out.fit_table(columns, jobs, width)
    parts: list[RenderableType] = [*head, out.styled(), *map_lines, out.styled()]
    parts.append(table if jobs else out.styled("no job is running or waiting", style="dim"))
    if more:
        parts.append(out.styled(f"… and {more} more", style="dim"))
    if decisions:
        parts += [out.styled(), out.styled("last decisions", style="bold"), *decisions]
    return Group(*parts)


def _header(cluster: Cluster) -> list[Text]:
    gpus = cluster.gpus
    policy = f"policy {cluster.policy}   " if cluster.policy else ""
    line = out.assembled(
        ("Batuta", "bold"),
        f" {cluster.version}   {gpus.used}/{gpus.total} GPUs used   {policy}",
        time.strftime("%H:%M:%S", time.localtime(cluster.now_s)),
    )
    counts = out.styled("  ").join(
        out.assembled(f"{count} ", out.state_text(state)) for state, count in cluster.jobs.items() if count
    )
    lines = [line, counts]
    if cluster.trouble:
        lines.append(out.styled(f"trouble: {cluster.trouble}", style="bold red"))
    return lines


def _map(nodes: Sequence[Node], width: int) -> list[Text]:
    """Return a line for each node with a cell for each GPU: the id of its job in the colour of the job."""
    longest = max((len(node.name) for node in nodes), default=0)
    lines = []
    for node in nodes:
        line = out.styled(f"{node.name:<{longest}}  ")
        for gpu in node.gpus:
            line.append_text(_cell(gpu))
            line.append(" ")
        if node.state != "ready":
            line.append_text(out.state_text(node.state))
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return lines


def _cell(gpu: Gpu) -> Text:
    if not gpu.healthy:
        return out.styled("✗".center(_CELL), style="white on red")
    if not gpu.jobs:
        return out.styled("·".center(_CELL), style="dim")
    if len(gpu.jobs) > 1:
        return out.styled(f"{len(gpu.jobs)}×".center(_CELL), style="black on white")
    job = gpu.jobs[0].id
    return out.styled(job.rpartition("/")[2][-_CELL:].center(_CELL), style=f"black on {colour_of(job)}")


def colour_of(job: str) -> str:
    """Return the colour of a job: always the same, and another one than that of the next id."""
    number = int(job) if job.isdecimal() else sum(job.encode())
    return COLOURS[number % len(COLOURS)]


def _decision(time_s: float | None, sentence: str) -> Text:
    line = out.assembled((out.format_time(time_s), "dim"), "  ", sentence)
    line.no_wrap, line.overflow = True, "ellipsis"
    return line
