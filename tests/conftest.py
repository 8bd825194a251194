"""What every test may rely on: Hypothesis without chance; the shared data, or one line that says so."""

import gc
import os
from pathlib import Path
from typing import Any

# Before NumPy is loaded: with two test processes on two cores, threads of BLAS only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from tests.support.examples import FAST, FEW, PROFILE

pytest_plugins = ["tests.support.outcome"]
pytest.register_assert_rewrite("tests.contract")  # cases that several test files share

REPO = Path(__file__).resolve().parents[1]

# Derandomized: a red run is red again on the next machine. Looking for new failures is a deliberate act:
# HYPOTHESIS_PROFILE=ci for more examples, pytest --hypothesis-seed=N for other ones.
settings.register_profile("dev", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=200, print_blob=True)
settings.register_profile(FAST, derandomize=True, deadline=None, max_examples=FEW)
settings.load_profile(PROFILE)


def _find_shared_data() -> Path | None:
    """Return the folder of traces and parity data; a folder that was asked for by name has to be there."""
    named = os.environ.get("BATUTA_SHARED_DATA")
    folder = Path(named) if named else REPO.parent / "shared" / "data"
    if folder.is_dir():
        return folder
    if named:
        raise pytest.UsageError(f"BATUTA_SHARED_DATA is not a folder: {named}")
    return None


SHARED_DATA = _find_shared_data()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark whatever uses the `shared_data` fixture, so that `-m "not data"` leaves it out."""
    for item in items:
        if "shared_data" in getattr(item, "fixturenames", ()):
            item.add_marker("data")


def pytest_collection_finish(session: pytest.Session) -> None:
    # Thousands of tests stay to the end: no look for garbage has to go through them.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """With `-n 2`, tests that share an operator or a server run in one of the processes."""
    from tests.support.distribution import BySharedState

    return BySharedState(config, log) if config.getoption("dist") == "load" else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    # Skipping here, and not by a mark, lets pytest fold all of them into one line of its summary.
    if SHARED_DATA is None and item.get_closest_marker("data"):
        pytest.skip("needs the shared data: put it at ../shared/data or set BATUTA_SHARED_DATA")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public traces and parity data (its README says what is there)."""
    assert SHARED_DATA is not None, "a test without the data is skipped before its fixtures are made"
    return SHARED_DATA
