"""On a terminal: tables that fit, colours, questions, `top` and its key."""

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from pathlib import Path

import pytest

from tests.support.server_process import fork_server

CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def on_terminal(cli, columns: int, *arguments: str, keys: str = "", after: str = "") -> tuple[int, str]:
    """The exit code and everything that was shown; `keys` are typed once `after` is to be read."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    environ = os.environ | {"BATUTA_HOME": str(cli.home), "TERM": "xterm-256color"}
    terminal = os.ttyname(theirs)
    process = fork_server().run(arguments, Path(terminal), cwd=cli.cwd, env=environ, reads=terminal)
    shown, give_up = "", time.monotonic() + 60
    while process.poll() is None and time.monotonic() < give_up:
        shown += _read(ours)
        if keys and after in shown:
            os.write(ours, keys.encode())
            keys = ""
    process.kill()
    os.close(theirs)
    while text := _read(ours):
        shown += text
    os.close(ours)
    return process.wait(), shown


def _read(terminal: int) -> str:
    """What is there to be read by now; nothing where the other side has hung up."""
    try:
        return os.read(terminal, 65536).decode() if select.select([terminal], [], [], 0.1)[0] else ""
    except OSError:
        return ""


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit_and_have_colours(cli, columns):
    cli.launch("-n", "a-name-that-is-longer-than-most-of-them-are", "--", "sleep 300")
    cli.wait("a-name-that-is-longer-than-most-of-them-are", "RUNNING")
    verbs = [[one] for one in ("queue", "status", "history", "nodes", "gpus", "queues")]
    verbs += [["queues", "--tree"], ["queues", "describe", "default"], ["policy", "list"]]
    for verb in verbs:
        code, shown = on_terminal(cli, columns, *verb)
        assert code == 0
        lines = CODES.sub("", shown).splitlines()
        assert all(len(line.rstrip()) <= columns for line in lines), shown
    assert CODES.search(on_terminal(cli, columns, "queue")[1])


def test_launch_asks_and_hears_no(cli):
    code, shown = on_terminal(cli, 80, "launch", "-n", "asked", "--", "true", keys="n\n", after="[Y/n]")
    assert (code, "one node with 1 GPU" in shown) == (1, True)
    assert "asked" not in {job["name"] for job in cli.json("queue", "-a")}
    code, shown = on_terminal(cli, 80, "launch", "-n", "asked", "--", "echo done", keys="\n", after="[Y/n]")
    assert (code, "SUCCEEDED" in shown) == (0, True)


def test_top_shows_gpus_and_jobs_and_leaves_at_q(cli):
    cli.launch("-n", "seen", "--", "sleep 300")
    cli.wait("seen", "RUNNING")
    code, shown = on_terminal(cli, 100, "top", keys="q", after="seen")
    assert code == 0
    assert "node-0" in shown
    assert "last decisions" in CODES.sub("", shown)
