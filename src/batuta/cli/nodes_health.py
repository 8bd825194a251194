"""The second part of `batuta nodes`: what is wrong with which GPU or node, since when, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

    from batuta.client.answers import Health, Node


def print_health(found: tuple[Node, ...]) -> None:
    """A row for each GPU and node that is not well, or that somebody has cordoned; nothing where all is."""
    import typer

    from batuta.cli.table import Column, print_table

    rows = [row for node in found for row in _rows(node)]
    if not rows:
        return
    columns = (
        Column("WHAT"),
        Column("HEALTH"),
        Column("SINCE", right=True),
        Column("BY"),
        Column("WHY", least=16),
        Column("TO DO", least=8),
    )
    typer.echo("")
    print_table(columns, rows, "")


def _rows(node: Node) -> Iterator[tuple[str | Text, ...]]:
    from batuta.cli.terminal import NOTHING, show_ago, state_text

    if node.state in ("cordoned", "draining") and node.cordoned_by:
        since = NOTHING if node.cordoned_s is None else show_ago(node.cordoned_s)
        undo = f"batuta nodes uncordon {node.name}"
        yield node.name, state_text(node.state), since, node.cordoned_by, "cordoned by hand", undo
    if node.health is not None and node.health.state != "healthy":
        yield _row(node.name, node.health, node.name)
    for gpu in node.gpus:
        if gpu.health is not None and gpu.health.state != "healthy":
            yield _row(f"{node.name} GPU {gpu.index}", gpu.health, f"{node.name} --gpu {gpu.index}")


def _row(what: str, health: Health, named: str) -> tuple[str | Text, ...]:
    from batuta.cli.terminal import NOTHING, show_ago, state_text

    state = f"{health.state}, in service" if health.held else health.state
    return (
        what,
        state_text(state),
        show_ago(health.since_s),
        health.who or NOTHING,
        health.reason or NOTHING,
        _to_do(health, named) or NOTHING,
    )


def _to_do(health: Health, named: str) -> str:
    import time

    from batuta.cli.terminal import show_seconds

    if health.until_s is not None:
        return f"back in {show_seconds(max(0.0, health.until_s - time.time()))}"
    if health.state == "ill" and health.remedy:
        return f"{health.remedy}, then: batuta nodes mended {named}"
    return ""
