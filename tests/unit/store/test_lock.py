import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

from batuta.store.errors import AlreadyRunningError, StateDirError
from batuta.store.state_dir import LockHolder, StateLock, lock_holder

SERVER = """
import sys, time
from pathlib import Path
from batuta.store.state_dir import StateLock
StateLock(Path(sys.argv[1])).acquire()
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lock"


@pytest.fixture
def server(path):
    """A process that has the lock."""
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_the_second_is_told_the_first_ones_pid(path, server):
    with pytest.raises(AlreadyRunningError, match=rf"another server runs on .* \(pid {server.pid}, since 20") as found:
        StateLock(path).acquire()
    assert found.value.pid == server.pid
    holder = lock_holder(path)
    assert holder is not None
    assert holder.pid == server.pid
    assert abs(holder.started_s - time.time()) < 60


def test_the_lock_goes_with_its_holder(path, server):
    server.send_signal(signal.SIGKILL)
    server.wait()
    assert json.loads(path.read_text())["pid"] == server.pid, "the name is still there"
    assert lock_holder(path) is None
    with StateLock(path):
        holder = lock_holder(path)
        assert holder is not None
        assert holder.pid == os.getpid()
    assert lock_holder(path) is None
    assert path.read_text() == ""


def test_a_program_that_the_server_starts_does_not_keep_the_lock(path):
    lock = StateLock(path)
    lock.acquire()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
    lock.release()
    assert lock_holder(path) is None
    with StateLock(path):
        pass
    child.kill()
    child.wait()


def test_a_process_takes_it_once(path):
    lock = StateLock(path)
    with lock:
        with pytest.raises(AlreadyRunningError, match="this process"):
            lock.acquire()
        with pytest.raises(AlreadyRunningError, match=f"pid {os.getpid()}"):
            StateLock(path).acquire()
    with lock:
        pass
    lock.release()


def test_those_who_look_do_not_keep_a_server_from_starting(path):
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            lock_holder(path)

    path.touch()
    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(50):
            StateLock(path).__enter__().release()
    finally:
        done.set()
        thread.join()


def test_a_holder_that_has_not_said_its_name(path):
    lock = StateLock(path)
    with lock:
        for text in ("", "{", "[]", '{"pid": "x", "started_s": 1}'):
            path.write_text(text)
            with pytest.raises(StateDirError, match="does not say"):
                lock_holder(path)
        with pytest.raises(AlreadyRunningError, match="did not say which") as found:
            StateLock(path).acquire()
        assert found.value.pid is None


def test_only_its_owner_may_touch_it(path):
    with StateLock(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_no_lock_no_holder(path):
    assert lock_holder(path) is None


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(StateDirError, match="cannot open the lock"):
        StateLock(tmp_path / "nowhere" / "lock").acquire()


def test_a_holder_is_shown_with_its_time():
    assert str(LockHolder(7, 0.0)).startswith("pid 7, since 19")
