"""A call of `batuta` that tests fork ends as the program itself does: by its exit code, and at Ctrl-C."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.server_process import fork_server


@pytest.mark.parametrize("words", [("version",), ("status", "no-such-job"), ("up", "--gpu-type", "H100"), ("no-verb",)])
def test_a_forked_call_has_the_exit_code_of_the_program(cli, words: tuple[str, ...]):
    process = cli.start(*words)
    out, err = process.communicate(timeout=60)
    forked = cli.run(*words)
    assert (forked.returncode, forked.stdout, forked.stderr) == (process.returncode, out, err)


def test_a_forked_call_ends_at_ctrl_c_as_the_program_does(cli, tmp_path: Path):
    cli.launch("-n", "quiet", "--", "echo begun; sleep 300")
    cli.wait("quiet", "RUNNING")
    process = cli.start("logs", "quiet")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    environ = os.environ | {"BATUTA_HOME": str(cli.home)}
    said = tmp_path / "said"
    forked = fork_server().run(["logs", "quiet"], said, cwd=cli.cwd, env=environ)
    give_up = time.monotonic() + 60.0
    while not said.exists() or "begun" not in said.read_text():
        assert time.monotonic() < give_up
        time.sleep(0.02)
    forked.send_signal(signal.SIGINT)
    assert forked.wait(60.0) == process.returncode
