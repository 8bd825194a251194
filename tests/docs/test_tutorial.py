"""The numbers that the tutorial gives are those that its commands print."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batuta.cli.main import app

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()
COMMANDS = re.findall(r"^batuta (simulate -w sample -p elastic-fifo --restart .*)$", PAGE, re.MULTILINE)
ROWS = re.findall(r"^\| \d+ s \| \w+ \| (\d+) min \| ([\d.]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE)


def test_the_table_of_restarts_is_what_its_commands_say() -> None:
    """Given its three runs, then restarts are more at a higher price, and fewer for each job."""
    assert len(COMMANDS) == len(ROWS) == 3
    found = []
    for command in COMMANDS:
        told = json.loads(CliRunner().invoke(app, [*command.split(), "-o", "json"]).stdout)
        hours = told["jobs"] * told["jct_s"]["mean"] / 3600
        makespan_h = told["makespan_s"] / 3600
        found.append(
            (
                told["jct_s"]["mean"] / 60,
                hours / makespan_h,
                told["restarts"],
                told["restarts"] / hours,
                told["lost_gpu_s"] / 3600,
            )
        )
    for row, measured in zip(ROWS, found, strict=True):
        assert [float(cell) for cell in row] == pytest.approx(measured, rel=0.03)
    cheap, dear, unweighed = found
    assert cheap[2] < dear[2] < unweighed[2]
    assert dear[3] < min(cheap[3], unweighed[3])
