"""The picture that `batuta top` shows: GPUs as a map, jobs as a table, the last decisions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from batuta.cli.job_view import queue_table
from batuta.cli.table import fit
from batuta.cli.terminal import state_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from batuta.client.answers import Cluster, Gpu, Job, Node

COLOURS = ("blue", "green", "magenta", "cyan", "yellow", "bright_blue", "bright_green", "bright_magenta")
LEFT_OUT = ("USER", "QUEUE", "SUBMITTED", "RESTARTS")
_CELL = 4


@dataclass(frozen=True, slots=True)
class Picture:
    """What there is to be seen at one moment."""

    cluster: Cluster
    nodes: Sequence[Node]
    jobs: Sequence[Job]
    decisions: Sequence[tuple[float | None, str]]
    """Time and sentence, the newest last."""


def draw(picture: Picture, width: int, height: int | None) -> RenderableType:
    """The picture for a screen of this size; without a height all of it."""
    from rich.console import Group
    from rich.text import Text

    head, map_lines = _header(picture.cluster), _map(picture.nodes, width)
    told = [_decision(*one) for one in picture.decisions[-(6 if height is None else min(6, height // 5)) :]]
    jobs = list(picture.jobs)
    more = 0
    if height is not None:
        # A quarter of the screen is the most that the map may take; jobs get what is left.
        map_lines = map_lines[: max(3, height // 4)]
        room = max(1, height - len(head) - len(map_lines) - len(told) - 6)
        more, jobs = max(0, len(jobs) - room), jobs[:room]
    columns, rows = queue_table(jobs)
    kept = [place for place, column in enumerate(columns) if column.title not in LEFT_OUT]
    table, _ = fit(
        [columns[place] for place in kept], [[row[place] for place in kept] for row in rows], width
    )
    parts: list[RenderableType] = [*head, Text(), *map_lines, Text()]
    parts.append(table if rows else Text("no job is running or waiting", style="dim"))
    if more:
        parts.append(Text(f"… and {more} more", style="dim"))
    if told:
        parts += [Text(), Text("last decisions", style="bold"), *told]
    return Group(*parts)


def _header(cluster: Cluster) -> list[Text]:
    from rich.text import Text

    gpus = cluster.gpus
    policy = f"policy {cluster.policy}   " if cluster.policy else ""
    line = Text.assemble(
        ("Batuta", "bold"),
        f" {cluster.version}   {gpus.used}/{gpus.total} GPUs used   {policy}",
        time.strftime("%H:%M:%S", time.localtime(cluster.now_s)),
    )
    counts = Text("  ").join(
        Text.assemble(f"{count} ", state_text(state)) for state, count in cluster.jobs.items() if count
    )
    lines = [line, counts]
    if cluster.trouble:
        lines.append(Text(f"trouble: {cluster.trouble}", style="bold red"))
    return lines


def _map(nodes: Sequence[Node], width: int) -> list[Text]:
    """A line for each node, a cell for each GPU: the job's id in the job's colour."""
    from rich.text import Text

    longest = max((len(node.name) for node in nodes), default=0)
    lines = []
    for node in nodes:
        line = Text(f"{node.name:<{longest}}  ")
        for gpu in node.gpus:
            line.append_text(_cell(gpu))
            line.append(" ")
        if node.state != "ready":
            line.append_text(state_text(node.state))
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return lines


def _cell(gpu: Gpu) -> Text:
    from rich.text import Text

    if not gpu.healthy:
        return Text("✗".center(_CELL), style="white on red")
    if not gpu.jobs:
        return Text("·".center(_CELL), style="dim")
    if len(gpu.jobs) > 1:
        return Text(f"{len(gpu.jobs)}×".center(_CELL), style="black on white")
    job = gpu.jobs[0].id
    return Text(job.rpartition("/")[2][-_CELL:].center(_CELL), style=f"black on {colour_of(job)}")


def colour_of(job: str) -> str:
    """The same for a job at all times; neighbours in number differ."""
    number = int(job) if job.isdecimal() else sum(job.encode())
    return COLOURS[number % len(COLOURS)]


def _decision(time_s: float | None, sentence: str) -> Text:
    from rich.text import Text

    from batuta.cli.terminal import show_moment

    line = Text.assemble((show_moment(time_s), "dim"), "  ", sentence)
    line.no_wrap, line.overflow = True, "ellipsis"
    return line
