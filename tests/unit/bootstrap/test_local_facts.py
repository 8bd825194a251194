"""What the command line finds out about a machine by itself."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batuta.bootstrap.local_facts import find_leftovers, server_pid
from batuta.client.errors import ClientError
from batuta.store.state_dir import StateLock


@contextmanager
def process(**environ: str) -> Iterator[int]:
    """One that does nothing, with these variables."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environ) as running:
        # Its environment can be read once the program has been loaded.
        while b"input" not in Path(f"/proc/{running.pid}/cmdline").read_bytes():
            pass
        try:
            yield running.pid
        finally:
            running.kill()


def marks(home: Path, run: str) -> dict[str, str]:
    return {"BATUTA_RUN": run, "BATUTA_CHECKPOINT_DIR": f"{home}/jobs/1/checkpoints"}


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_leftovers_are_processes_whose_runner_is_gone(tmp_path):
    with process(**marks(tmp_path, "b-1-0-0-abc")) as pid:
        (found,) = find_leftovers(tmp_path)
        assert (found.pid, found.run) == (pid, "b-1-0-0-abc")
        assert "input()" in found.command
        assert find_leftovers(tmp_path / "another") == [], "of another state directory"
        with process(BATUTA_RUNNER="b-1-0-0-abc"):
            assert find_leftovers(tmp_path) == [], "its runner is there"
    assert find_leftovers(tmp_path) == []


def test_who_has_a_state_directory(tmp_path):
    assert server_pid(tmp_path) is None
    with StateLock(tmp_path / "lock"):
        assert server_pid(tmp_path) == os.getpid()
    assert server_pid(tmp_path) is None


def test_a_lock_without_a_name_is_told_in_words(tmp_path):
    import fcntl

    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ClientError, match="does not say which one it is"):
            server_pid(tmp_path)
