"""`batuta --help` with its verbs in sections, in the order in which they were added."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

OTHERS = "More"


class Sections(TyperGroup):
    """A group that lists commands by what they are for (their `rich_help_panel`)."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        shown = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        visible = [(name, command) for name, command in shown if command is not None and not command.hidden]
        longest = max(len(name) for name, _ in visible)
        for name, command in visible:
            title = getattr(command, "rich_help_panel", None)
            limit = max(20, formatter.width - longest - 8)
            row = (f"{name:<{longest}}", command.get_short_help_str(limit))
            sections.setdefault(title if isinstance(title, str) else OTHERS, []).append(row)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)
