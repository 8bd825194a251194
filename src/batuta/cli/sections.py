"""`batuta --help` with its verbs in sections, in the order of the table of verbs."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from batuta.cli.verbs import VERBS, LazyVerbs


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
