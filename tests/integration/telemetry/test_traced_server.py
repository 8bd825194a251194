"""`batuta up --otlp`: what a server with real processes tells a receiver, its metrics and its log."""

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batuta.api.app import create_app
from batuta.api.operations import Operations, Submission
from batuta.api.routes.metrics import expose
from batuta.bootstrap.local_server import Server, UpOptions, built
from batuta.cli.main import app
from batuta.core import event as ev
from batuta.core.job import DesiredState, JobId
from batuta.spec.problem import InputError
from batuta.spec.task import parse_task
from batuta.spec.task_serialization import task_to_json
from batuta.telemetry import LogFormat
from batuta.telemetry.logs import open_log
from tests.support.local_replicas import wait_until
from tests.support.otlp_receiver import Receiver, attributes_of, receiving, refusing_url


def options(folder: Path, url: str, form: LogFormat = LogFormat.JSON) -> UpOptions:
    return UpOptions(home=folder / "home", nodes=1, gpus=2, virtual=True, otlp=url, log_format=form)


def submit(server: Server, script: str) -> JobId:
    task = parse_task(json.dumps({"run": script}), check_paths=False)
    submission = Submission(task, task_to_json(task), "ana")
    server.service.ask(Operations(server.store, time.time).submit(submission))
    return submission.job


def by_name(receiver: Receiver, job: JobId) -> dict[str, dict]:
    """Spans that speak of a job."""
    return {span["name"]: span for span in receiver.spans() if attributes_of(span).get("batuta.job") == job}


def test_a_job_from_order_to_effect(tmp_path: Path):
    with receiving() as receiver, built(options(tmp_path, receiver.url)) as server:
        server.service.start()
        job = submit(server, "exec sleep 60")
        assert receiver.wait_for_span("start")
        server.service.ask(lambda world: [ev.JobWished(world.now_s, job, DesiredState.CANCEL)])
        assert receiver.wait_for_span("stop")
    spans = by_name(receiver, job)
    start, stop = attributes_of(spans["start"]), attributes_of(spans["stop"])
    assert (start["batuta.outcome"], stop["batuta.outcome"]) == ("running", "cancelled")
    assert int(spans["start"]["endTimeUnixNano"]) > int(spans["start"]["startTimeUnixNano"])
    assert spans["start replicas"]["parentSpanId"] == spans["start"]["spanId"]
    roots = {span["spanId"]: span for span in receiver.spans() if span["name"] == "cycle"}
    root = roots[spans["start"]["parentSpanId"]]
    assert attributes_of(root)["batuta.cycle"] == start["batuta.cycle"]
    own = [one["name"] for one in receiver.spans() if one.get("parentSpanId") == root["spanId"]]
    assert {"admit", "allocate", "place", "weigh", "explain", "carry out", "start"} <= set(own)
    open_log(tmp_path / "next.log")
    said = [json.loads(line) for line in (tmp_path / "home" / "server.log").read_text().splitlines()]
    (line,) = [one for one in said if one["event"] == "command" and one["kind"] == "start"]
    assert (line["job"], line["cycle"]) == (job, start["batuta.cycle"])


def test_without_anybody_who_takes_traces_all_goes_on_and_what_is_lost_is_counted(tmp_path: Path):
    with built(options(tmp_path, refusing_url(), LogFormat.TEXT)) as server:
        server.service.start()
        job = submit(server, "true")
        wait_until(lambda: job in server.world.past, what="the job is over")
        exporter = server.telemetry.exporter
        assert exporter is not None
        state = create_app(server.parts).state.batuta
        text = expose(state, state.snapshots.take()).decode()
        assert 'batuta_otlp_spans_total{outcome="sent"} 0.0' in text
        assert "batuta_otlp_queued_spans" in text
    assert exporter.counts["given_up"] > 0
    open_log(tmp_path / "next.log")
    log = (tmp_path / "home" / "server.log").read_text()
    assert log.count("traces cannot be sent to http://127.0.0.1") == 1
    assert f"job={job}" in log


def test_a_url_that_is_none_is_told_with_everything_else():
    done = CliRunner().invoke(app, ["up", "--virtual", "--otlp", "localhost:4318", "--retain-days", "0"])
    assert isinstance(done.exception, InputError)
    assert [str(one).split()[0] for one in done.exception.problems] == ["--retain-days", "--otlp"]


@pytest.mark.parametrize("word", ["yaml", ""])
def test_a_log_format_that_is_none_is_refused(word):
    assert CliRunner().invoke(app, ["up", "--log-format", word]).exit_code == 2
