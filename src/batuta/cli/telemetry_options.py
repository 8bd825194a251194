"""Options of who runs an engine: what it tells of itself, and to whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from batuta.spec.problem import Problem


OtlpOption = Annotated[
    str | None,
    typer.Option(
        "--otlp",
        help="Send traces of cycles there over OTLP/HTTP, as in http://127.0.0.1:4318.",
        metavar="URL",
        show_default=False,
    ),
]


def check_otlp_option(url: str | None, problems: list[Problem]) -> None:
    """Adds what is wrong with it to `problems`."""
    from batuta.spec.problem import InputError

    if url is None:
        return
    from batuta.bootstrap.telemetry import check_otlp

    try:
        check_otlp(url)
    except InputError as error:
        problems.extend(error.problems)
