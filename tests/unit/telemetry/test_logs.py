"""Log lines carry the ids of cycle and job, whoever writes them, and nobody waits until they are written."""

import json
import logging
import threading
from pathlib import Path

import pytest

from batuta.backends.sim.backend import SimBackend
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.world import World
from batuta.engine.journal import JournaledWorld
from batuta.engine.loop import Engine
from batuta.engine.profile import profile_for
from batuta.telemetry import LogFormat
from batuta.telemetry.logs import BackgroundLogHandler, CycleLog, log_to_stderr, open_log
from tests.support.memory_journal import MemoryJournal
from tests.support.sims import sim_job
from tests.support.worlds import make_nodes


class Chatty(SimBackend):
    """A backend with something to say while it carries commands out."""

    def execute(self, commands, now_s):
        for command in commands:
            logging.getLogger("batuta.backends").warning("job %s looks odd", command.job, extra={"job": command.job})
        return super().execute(commands, now_s)


def run_jobs(folder: Path, form: LogFormat = LogFormat.JSON) -> tuple[list[str], MemoryJournal]:
    path = folder / "server.log"
    log = open_log(path, form)
    backend = Chatty([sim_job("j1", 2), sim_job("j2", 2, submit_s=10.0)], make_nodes(2))
    world, journal = World(), MemoryJournal()
    for event in backend.opening():
        apply(world, event)
    watcher = CycleLog(world)
    Engine(JournaledWorld(world, journal), backend, profile_for("fifo"), watcher).run()
    log.info("ending", keep_jobs=True)
    open_log(folder / "next.log")
    return path.read_text(encoding="utf-8").splitlines(), journal


def test_every_line_of_a_cycle_has_its_id_and_every_line_of_a_job_its(tmp_path):
    lines, journal = run_jobs(tmp_path)
    said = [json.loads(line) for line in lines]
    versions = [event.plan.world_version for event in journal if isinstance(event, ev.Planned)]
    for name in ("planned", "command", "job j1 looks odd", "job j2 looks odd"):
        assert all(one["cycle"] in versions for one in said if one["event"] == name)
    assert [one["cycle"] for one in said if one["event"] == "planned"] == versions
    commands = [(one["job"], one["kind"], one["reason"], one["gpus"]) for one in said if one["event"] == "command"]
    assert [(job, kind, gpus) for job, kind, _, gpus in commands] == [("j1", "start", 2), ("j2", "start", 2)]
    of_j1 = [one["event"] for one in said if one.get("job") == "j1"]
    assert of_j1 == ["job submitted", "job j1 looks odd", "job runs", "command", "job ended"]
    assert said[-1]["event"] == "ending"
    assert "cycle" not in said[-1]
    assert all(one["timestamp"].endswith("Z") and one["level"] for one in said)


def test_a_text_line_has_the_same_ids(tmp_path):
    lines, _ = run_jobs(tmp_path, LogFormat.TEXT)
    (line,) = [line for line in lines if "job j1 looks odd" in line]
    assert "job=j1" in line
    assert "cycle=" in line
    assert "\x1b" not in line


@pytest.mark.parametrize("form", list(LogFormat))
def test_an_operator_writes_to_stderr_with_the_error_in_full(form, capfd):
    before = logging.getLogger().handlers[:]
    log_to_stderr(form)
    (handler,) = [one for one in logging.getLogger().handlers if one not in before]
    try:
        try:
            raise ZeroDivisionError("no idea")
        except ZeroDivisionError:
            logging.getLogger("batuta.operator").exception("the engine has died", extra={"job": "j7"})
        handler.flush()
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
    said = capfd.readouterr().err
    assert "ZeroDivisionError: no idea" in said
    if form is LogFormat.JSON:
        line = json.loads(said)
        assert (line["event"], line["job"], line["logger"]) == (
            "the engine has died",
            "j7",
            "batuta.operator",
        )


class Stuck(logging.Handler):
    """Writes nothing before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_write = threading.Event(), threading.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.asked.set()
        assert self.may_write.wait(30.0)
        self.lines.append(record.getMessage())


def test_a_disk_that_hangs_holds_up_nobody_and_what_is_lost_is_told():
    stuck = Stuck()
    behind = BackgroundLogHandler(stuck, limit=3)
    logger = logging.Logger("test", logging.INFO)
    logger.addHandler(behind)
    logger.info("first")
    assert stuck.asked.wait(10.0)
    for number in range(10):
        logger.info("line %d", number)
    assert behind.dropped == 7
    stuck.may_write.set()
    behind.flush()
    behind.close()
    assert stuck.lines[:4] == ["first", "line 0", "line 1", "line 2"]
    assert stuck.lines[4] == "7 lines could not be written in time and are lost"


def test_a_line_says_what_was_true_when_it_was_said():
    stuck, thing = Stuck(), ["before"]
    behind = BackgroundLogHandler(stuck)
    logger = logging.Logger("test", logging.INFO)
    logger.addHandler(behind)
    logger.info("it is %s", thing)
    thing[0] = "after"
    stuck.may_write.set()
    behind.close()
    assert stuck.lines == ["it is ['before']"]
