"""`pytest --outcome-to FILE` leaves there how the run ended and which tests failed."""

from pathlib import Path

import pytest

from tests.support.known_races import Outcome


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcome-to", type=Path, metavar="FILE", help="write exit code and failed tests there, as JSON")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    # There is one terminal, so with several processes this is called once, after all of them.
    file: Path | None = config.getoption("--outcome-to")
    if file is not None:
        reports = [*terminalreporter.stats.get("failed", []), *terminalreporter.stats.get("error", [])]
        Outcome(int(exitstatus), frozenset(report.nodeid for report in reports)).write(file)
