"""A cache of its own for every test, and a small application to look at."""

from pathlib import Path

import pytest

from batuta.backends.sim.goodput.application import Application, load_applications
from tests.unit.backends.sim.goodput.toy_profiles import write_toy


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "batuta" / "goodput"


@pytest.fixture
def toy_folder(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "profiles")


@pytest.fixture
def toy(toy_folder: Path) -> Application:
    return load_applications(toy_folder)["toy"]
