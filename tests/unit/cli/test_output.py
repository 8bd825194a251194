"""Tables fit the terminal: what matters least goes first, sentences are cut, pipes get all."""

import pytest
from rich.console import Console

from batuta.cli.output import Cells, Column, fit_table

COLUMNS: tuple[Column[Cells], ...] = (
    Column("ID", right=True),
    Column("NAME", least=6),
    Column("USER", drop=2),
    Column("ETA", drop=1),
    Column("REASON", least=10),
)
ROWS = [
    ("1", "resnet-on-imagenet", "ana", "3m 20s", "needs 8 GPUs, 3 of 8 are left by the jobs that go first"),
    ("17", "bert", "ben", "–", ""),
]


def lines(width: int | None, rows=ROWS) -> tuple[list[str], list[str]]:
    table, hidden = fit_table(COLUMNS, rows, width)
    out = Console(width=width or 10_000, no_color=True)
    with out.capture() as caught:
        out.print(table)
    return [line.rstrip() for line in caught.get().splitlines()], hidden


def test_with_room_for_all_nothing_is_cut():
    shown, hidden = lines(None)
    assert hidden == []
    assert shown[0].split() == ["ID", "NAME", "USER", "ETA", "REASON"]
    assert shown[1].endswith("that go first")


@pytest.mark.parametrize(("width", "hidden"), [(60, []), (33, ["USER"]), (25, ["USER", "ETA"]), (12, ["USER", "ETA"])])
def test_columns_are_left_out_in_order(width, hidden):
    shown, left_out = lines(width)
    assert left_out == hidden
    assert all(len(line) <= width for line in shown)


def test_ids_stay_where_there_is_hardly_any_room():
    shown, _ = lines(14)
    assert [line[:2] for line in shown] == ["ID", " 1", "17"]


def test_sentences_are_cut_with_a_mark():
    shown, _ = lines(60)
    assert shown[1].endswith("…")


def test_markup_in_names_is_text():
    shown, _ = lines(None, [("1", "[red]x[/red]", "a", "b", "[bold]")])
    assert "[red]x[/red]" in shown[1]


def test_a_table_without_rows_has_its_titles():
    assert lines(80, [])[0] == ["ID  NAME  USER  ETA  REASON"]
