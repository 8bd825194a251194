"""`batuta report`, and a size that is left open, as people see them."""

import json
import time

import pytest


def test_the_report_in_words_as_json_and_as_a_page(cli):
    cli.wait(cli.launch("-n", "short", "--", "true"), "SUCCEEDED")
    words = cli.ok("report", "--from", "1h")
    assert "GPU-hours" in words
    assert "default" in words
    told = cli.json("report", "--from", "1h")
    total = told["total"]
    parts = ("used", "unused", "restarting", "lost", "idle", "fragmented", "unavailable")
    assert sum(total[f"{part}_gpu_s"] for part in parts) == pytest.approx(total["capacity_gpu_s"])
    assert total["used_gpu_s"] + total["restarting_gpu_s"] > 0
    assert not cli.ok("report", "--html", "waste.html")
    page = (cli.cwd / "waste.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "http" not in page.replace("http-equiv", "")


def test_bad_times_are_refused_all_at_once(cli):
    wrong = cli.run("report", "--from", "soon", "--to", "later")
    assert wrong.returncode == 2
    assert "--from: 'soon'" in wrong.stderr
    assert "--to: 'later'" in wrong.stderr
    empty = cli.run("report", "--from", "2020-01-02", "--to", "2020-01-01")
    assert (empty.returncode, "empty" in empty.stderr) == (2, True)
    nowhere = cli.run("report", "--html", "/dev/null/w.html")
    assert (nowhere.returncode, "--html" in nowhere.stderr) == (2, True)


def test_without_a_server_there_is_nothing_to_report(nobody):
    told = nobody.run("report")
    assert told.returncode == 1
    assert "Traceback" not in told.stderr


def test_a_size_that_is_left_open_comes_with_its_reason(cli):
    shown = json.loads(cli.ok("launch", "--num-nodes", "auto", "-n", "new", "-d", "-o", "json", "--", "sleep 300"))
    assert "not known yet" in shown["job"]["size_choice"]["sentence"]
    assert "its size was left open" in cli.ok("explain", shown["job"]["id"])
    wrong = cli.run("launch", "--num-nodes", "some", "-d", "--", "true")
    assert wrong.returncode == 2
    assert "or auto, found 'some'" in wrong.stderr


def test_what_a_job_holds_without_using_it_is_not_used(cli):
    """Given a job that sleeps on all GPUs, then the report says what the nodes' utilisation says."""

    def utilisation() -> list[float | None]:
        return [gpu["utilisation"] for node in cli.json("nodes") for gpu in node["gpus"]]

    cli.until(utilisation, lambda found: None not in found)
    job = cli.launch("--num-nodes", "8", "--", "sleep", "300")
    cli.wait(job, "RUNNING")
    time.sleep(3)
    total = cli.json("report", "--from", "2s")["total"]
    assert utilisation() == [0.0] * 8
    assert total["used_gpu_s"] == 0.0
    assert total["unused_gpu_s"] == pytest.approx(total["capacity_gpu_s"])
