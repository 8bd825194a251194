"""The demo, told from events: which jobs are its own, and what it says of them."""

import io
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from batuta.apitypes.resources import Event
from batuta.bootstrap import demo
from batuta.bootstrap.local_server import UpOptions
from batuta.client.client import Client
from batuta.client.errors import ClientError


class FakeClient:
    """A server whose journal has 40 entries of earlier jobs; it gives the next one the id 7."""

    def cluster(self) -> Any:
        return SimpleNamespace(seq=40)

    def submit(self, task: str) -> Any:
        return SimpleNamespace(id="7")

    def nodes(self) -> tuple[Any, ...]:
        return ()

    def events(self, after: int) -> Iterator[Event]:
        assert after == 40
        yield _event("JobEnded", {"job": "3", "state": "SUCCEEDED"})  # of an earlier demo, going on
        yield _event("JobSubmitted", {"job": {"id": "7", "name": "vision", "min": 2, "max": 2}})
        yield _event("JobEnded", {"job": "7", "state": "SUCCEEDED"})
        threading.Event().wait(600)  # nothing more happens


class StrictClient(FakeClient):
    """A server that takes no job, and of which nothing else is heard."""

    def submit(self, task: str) -> Any:
        raise ClientError("no room for this")

    def events(self, after: int) -> Iterator[Event]:
        threading.Event().wait(600)
        yield from ()


def _event(type_: str, data: dict[str, Any]) -> Event:
    return Event(seq=41, type=type_, data=data)


def test_only_jobs_of_this_demo_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "DEMO", (SimpleNamespace(at_s=0.0, task_yaml_text="run: x"),))
    out = io.StringIO()
    telling = demo._ProgressPrinter(cast(Client, FakeClient()), Console(file=out, width=100))
    telling._submit_all()
    monkeypatch.setattr(telling, "_submit_all", lambda: None)
    telling.run()
    assert telling.mine == {"7"}
    assert "vision     arrives: 2 GPUs\n" in out.getvalue()


def test_a_job_that_is_refused_is_the_end_of_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "DEMO", (SimpleNamespace(at_s=0.0, task_yaml_text="run: x"),))
    telling = demo._ProgressPrinter(cast(Client, StrictClient()), Console(file=io.StringIO()))
    with pytest.raises(ClientError, match="no room for this"):
        telling.run()


def test_a_demo_of_which_nothing_is_heard_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "DEMO", (SimpleNamespace(at_s=3600.0, task_yaml_text="run: x"),))
    monkeypatch.setattr(demo, "_GIVE_UP_S", 0.05)
    telling = demo._ProgressPrinter(cast(Client, StrictClient()), Console(file=io.StringIO()))
    with pytest.raises(TimeoutError, match="not over after"):
        telling.run()


def test_every_job_has_a_letter_of_its_own() -> None:
    telling = demo._ProgressPrinter(cast(Client, FakeClient()), Console(file=io.StringIO()))
    for number, name in enumerate(("speech", "eval", "smoke", "see")):
        job = {"id": str(number), "name": name, "min": 1, "max": 2}
        telling._tell(_event("JobSubmitted", {"job": job}))
    assert list(telling._letters.values()) == ["S", "E", "M", "?"]


def test_what_one_is_told_to_type_works_where_one_stands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "batuta"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bin/batuta", "up", "--demo"])
    assert demo._command("top", tmp_path / "my demo") == "bin/batuta top --home 'my demo'"
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    assert demo._command("top", Path("/elsewhere")) == "batuta top --home /elsewhere"
    assert demo._command("top", None) == "batuta top"


@pytest.mark.parametrize(("asked", "given"), [("", ""), ("afs-l", "afs-l")])
def test_its_policy_is_what_a_new_server_begins_with_unless_another_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: str, given: str
) -> None:
    served: list[str] = []

    def serve(options: UpOptions, begin: object) -> int:
        served.append(options.policy)
        return 3

    monkeypatch.setattr(demo, "serve", serve)
    assert demo.run_demo(UpOptions(home=tmp_path, policy=asked), stay=False) == 3
    assert served == [given]
