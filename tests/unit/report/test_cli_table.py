import io
import math

import pytest
from rich.console import Console

from batuta.core.job import JobState
from batuta.report.cli_table import comparison_table, comparison_view, run_view
from batuta.report.comparison import compare
from tests.support.results import TOY_POLICIES, make_job, make_run, toy_run


def printed(view, width, **options):
    file = io.StringIO()
    Console(file=file, width=width, **options).print(view)
    return file.getvalue()


@pytest.fixture(scope="module")
def comparison():
    return compare([toy_run(policy, jobs=60, seed=seed) for policy in TOY_POLICIES for seed in range(3)])


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_the_table_fits_and_nothing_is_cut(comparison, width):
    text = printed(comparison_table(comparison, width), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert len(text.splitlines()) == 2 + 1 + len(TOY_POLICIES)
    for policy in TOY_POLICIES:
        assert policy in text


def test_a_wide_window_shows_every_metric(comparison):
    assert len(comparison_table(comparison, 200).columns) == 2 + 17
    assert len(comparison_table(comparison, 100).columns) >= 9


def test_colours_are_for_terminals(comparison):
    assert "\x1b[" not in printed(comparison_view(comparison, 100), 100)
    assert "\x1b[1;32m" in printed(comparison_view(comparison, 100), 100, force_terminal=True, color_system="standard")


def test_the_sentence_comes_first(comparison):
    assert printed(comparison_view(comparison, 100), 100).splitlines()[0].endswith("faster than fifo on average")


def test_names_are_not_markup():
    runs = [make_run("[bold]x[/bold]", workload="[red]w"), make_run("fifo", workload="[red]w")]
    assert "[bold]x[/bold]" in printed(comparison_view(compare(runs)), 120)
    assert "[bold]x[/bold] on [red]w" in printed(run_view(runs[0]), 120)


def test_one_run():
    text = printed(run_view(toy_run("afs-l", jobs=40)), 100)
    assert "40 of 40 finished" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_run_in_which_nothing_finished():
    job = make_job(state=JobState.PENDING, first_start_s=math.nan, end_s=math.nan)
    text = printed(run_view(make_run("fifo", [job], complete=False, notes=("out of time",))), 100)
    assert "0 of 1 finished; stopped early" in text
    assert "no job finished" in text
    assert "note: out of time" in text
    assert "nan" not in text
