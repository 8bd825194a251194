"""`batuta --help` with its verbs in sections, as the table of verbs has them; no sentence is cut short."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from batuta.cli.verbs import VERBS, LazyVerbs


class Group(TyperGroup):
    """A verb with verbs of its own, such as `batuta nodes`: each is listed with its whole first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = [
            (name, command.get_short_help_str(limit=10_000))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class Sections(TyperGroup):
    """The group of all verbs. It lists them by what they are for, without loading them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = LazyVerbs()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        longest = max(len(verb.name) for verb in VERBS)
        for verb in VERBS:
            sections.setdefault(verb.section, []).append((f"{verb.name:<{longest}}", verb.sentence))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)
