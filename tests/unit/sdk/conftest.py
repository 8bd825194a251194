"""An SDK that has seen nothing, and the two places that it writes to."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from batuta import sdk
from batuta.sdk import _lines, _requests, _stderr, _waiting
from batuta.sdk._waiting import OwnTime


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has an SDK that has seen nothing, in a process that Batuta did not start."""
    for name in [name for name in os.environ if name.startswith("BATUTA_")]:
        monkeypatch.delenv(name)
    for name, value in (("_answered", 0), ("_signalled", False), ("_listening", False), ("_reported", False)):
        monkeypatch.setattr(_requests, name, value)
    monkeypatch.setattr(_stderr, "_kept", [])
    for name, empty in (("_warned", set()), ("_torn", set()), ("_held", {}), ("_last_s", {})):
        monkeypatch.setattr(_lines, name, empty)
    clock = OwnTime()
    for module in (sdk, _waiting):
        monkeypatch.setattr(module, "own_time", clock)
    monkeypatch.setattr(_waiting, "_reported_since_s", [])
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATUTA_PROGRESS", str(tmp_path / "progress.jsonl"))
    return tmp_path / "progress.jsonl"


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "control").mkdir()
    monkeypatch.setenv("BATUTA_CONTROL", str(tmp_path / "control"))
    return tmp_path / "control"
