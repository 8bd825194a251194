"""`ports` are told: at launch, in status and in explain, as the place where they are reached."""

import json
import socket
import urllib.request

SERVES = 'python3 -m http.server "$PORT"'


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(place: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{place}/marker", timeout=5) as page:
            return bool(page.read() == b"here")
    except OSError:
        return False


def test_ports_are_told_and_are_reached_there(cli):
    # given a task that listens at a port, and names a range beside it
    port = free_port()
    (cli.cwd / "marker").write_text("here")
    task = {
        "name": "web",
        "workdir": ".",
        "resources": {"accelerators": 1, "ports": [port, "10052-10100"]},
        "envs": {"PORT": str(port)},
        "run": SERVES,
    }
    (cli.cwd / "task.yaml").write_text(json.dumps(task))
    # when it is launched
    done = cli.run("launch", "-d", "task.yaml")
    # then its user is told where
    places = [f"127.0.0.1:{port}", "127.0.0.1:10052-10100"]
    assert f"note: ports: reached at {', '.join(places)} while the job runs" in done.stderr
    # and later on too, and there it answers
    job = cli.wait("web", "RUNNING")
    assert job["endpoints"] == places
    assert cli.until(lambda: answers(places[0]), bool)
    assert f"ports  {', '.join(places)}" in " ".join(cli.ok("status", "web").split()).replace("ports ", "ports  ")
    assert f"its ports are reached at {', '.join(places)} while it runs" in " ".join(cli.ok("explain", "web").split())
    assert cli.json("explain", "web")["endpoints"] == places


def test_a_job_without_ports_has_none(cli):
    job = cli.launch("--", "true")
    assert cli.wait(job, "SUCCEEDED")["endpoints"] == []
