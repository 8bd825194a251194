"""Output of real replicas in capped logs: floods, full disks, readers that follow."""

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batuta.backends.local.logs import ReplicaLog
from batuta.backends.local.processes import stop
from batuta.backends.local.runner_protocol import ExitReason, ReplicaPhase
from tests.support.local_replicas import Replicas, follow, wait_until

MIB = 1024 * 1024

# Numbered lines, many per write, as fast as they are taken.
FLOOD = """
import os, sys, time
end = time.monotonic() + float(sys.argv[1])
number = 0
while time.monotonic() < end:
    os.write(1, b"".join(b"%015d\\n" % i for i in range(number, number + 4096)))
    number += 4096
print("last", number)
"""
# The same block again and again: faster than any real job.
FASTEST = """
import os, sys, time
block = b"x" * 1023 + b"\\n"
block *= 1024
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    os.write(1, block)
print("last")
"""


def flood(replicas: Replicas, code: str, seconds: float, **spec):
    (replicas.home / "flood.py").write_text(code)
    return replicas.start(f"exec $PYTHON -I -S -u flood.py {seconds}", **spec)


def sizes(log: Path) -> list[int]:
    found = []
    for path in (log, Path(f"{log}.1")):
        with contextlib.suppress(FileNotFoundError):  # just being rotated
            found.append(path.stat().st_size)
    return found


def test_flood_stays_within_its_cap_and_keeps_its_tail(replicas: Replicas):
    started = flood(replicas, FLOOD, 1.5, log_cap_bytes=4 * MIB)
    most = 0
    while started.replica.is_running:
        most = max(most, sum(sizes(started.spec.log)))
        time.sleep(0.005)
    assert started.end().exit_code == 0
    assert MIB < most <= 4 * MIB
    older, newer = Path(f"{started.spec.log}.1").read_text(), started.log()
    assert older.endswith("\n")
    *numbers, last = (older + newer).splitlines()
    assert [int(number) for number in numbers] == list(range(int(numbers[0]), int(numbers[-1]) + 1))
    assert last == f"last {int(numbers[-1]) + 1}"
    span = ReplicaLog(started.spec.log).span()
    assert span.end == 16 * (int(numbers[-1]) + 1) + len(last) + 1
    assert started.state().log_dropped_bytes == 0
    after = replicas.start("echo next")
    assert (after.end().exit_code, after.log()) == (0, "next\n")


def test_fastest_flood_is_taken_fast(replicas: Replicas, capsys: pytest.CaptureFixture[str]):
    started = flood(replicas, FASTEST, 1.5, log_cap_bytes=64 * MIB)
    state = started.end()
    log = ReplicaLog(started.spec.log)
    rate = log.span().end / MIB / 1.5
    with capsys.disabled():
        sys.stdout.write(f" [log: {rate:.0f} MiB/s]")
    assert rate > 10  # 200 on a quiet machine; the job itself needs a core as well
    assert sum(sizes(started.spec.log)) <= 64 * MIB
    assert log.tail(1) == ["last"]
    assert (state.why, state.exit_code) == (ExitReason.EXITED, 0)


def test_flood_can_be_stopped_at_once(replicas: Replicas):
    started = flood(replicas, FASTEST, 1000, log_cap_bytes=MIB)
    wait_until(lambda: len(sizes(started.spec.log)) == 2)
    begun = time.monotonic()
    stop(started.replica)
    assert started.end().why is ExitReason.STOPPED
    assert time.monotonic() - begun < 20


def test_output_of_killed_processes_is_kept(replicas: Replicas):
    started = replicas.start("(sleep 0.2; echo from a child; sleep 1000) & sleep 0.6; echo from the parent")
    started.end()
    assert sorted(started.log().splitlines()) == ["from a child", "from the parent"]


def test_follower_misses_nothing_that_it_is_fast_enough_for(replicas: Replicas):
    code = "import time\nfor i in range(6000):\n    print('%06d é' % i)\n    i % 20 or time.sleep(0.005)"
    started = replicas.python(code, log_cap_bytes=48 * 1024)
    log = ReplicaLog(started.spec.log)
    pieces = list(follow(log, lambda: not started.replica.is_running, poll_s=0.002))
    assert [piece.begin for piece in pieces[1:]] == [piece.end for piece in pieces[:-1]]
    assert b"".join(piece.data for piece in pieces).decode() == "".join(f"{i:06d} é\n" for i in range(6000))
    assert log.span().begin > 0  # it was rotated on the way


def test_follower_of_a_flood_goes_on_behind_the_gap(replicas: Replicas):
    started = flood(replicas, FLOOD, 1.0, log_cap_bytes=MIB)
    log = ReplicaLog(started.spec.log)
    end = 0
    for piece in follow(log, lambda: not started.replica.is_running, poll_s=0.05):
        assert piece.begin >= end
        # Every line is where its number says, whatever was rotated in between.
        first_line = -piece.begin % 16
        number = piece.data[first_line : first_line + 15]
        if len(number) == 15 and number.isdigit():
            assert int(number) * 16 == piece.begin + first_line
        end = piece.end
    assert end == log.span().end


def test_next_run_goes_on_in_the_same_log(replicas: Replicas):
    log = replicas.home / "shared.log"
    for word in ("one", "two", "three"):
        replicas.start(f"for i in $(seq 1500); do echo {word} $i; done", log=log, log_cap_bytes=40_000).end()
    text = "".join(f"{word} {i}\n" for word in ("one", "two", "three") for i in range(1, 1501))
    reader = ReplicaLog(log)
    span = reader.span()
    assert span.end == len(text)
    assert span.begin > 0
    assert b"".join(piece.data for piece in reader.pieces(0, span.end)).decode() == text[span.begin :]


# ------------------------------------------------------------------------------------------------ a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a full disk is tried on a tmpfs, which only root may mount")
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("a full disk is tried on a tmpfs, which may not be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_full_disk_neither_ends_the_job_nor_hides_its_end(replicas: Replicas, small_disk: Path):
    replicas.home = small_disk
    code = "import sys\nfor i in range(40000):\n    print('x' * 99)\nopen('/dev/null')\nsys.exit(5)"
    started = replicas.python(code)
    state = started.end()
    assert (state.phase, state.why, state.exit_code) == (ReplicaPhase.EXITED, ExitReason.EXITED, 5)
    assert state.log_dropped_bytes > 2_900_000
    assert state.log_dropped_bytes + started.spec.log.stat().st_size >= 4_000_000


def test_log_goes_on_when_there_is_space_again(replicas: Replicas, small_disk: Path):
    ballast = small_disk / "ballast"
    work = replicas.home
    replicas.home = small_disk
    code = """
import os, time
print("before")
def await_(name):
    while not os.path.exists(name):
        time.sleep(0.01)
await_("full")
print("x" * 200_000)
await_("free")
for i in range(3):
    print("after", i)
"""
    started = replicas.python(code, cwd=work)
    started.until_logged("before")
    with open(ballast, "wb", buffering=0) as file:
        for size in (65536, 4096):
            with contextlib.suppress(OSError):
                file.writelines(itertools.repeat(b"\0" * size))
    (work / "full").touch()
    wait_until(lambda: started.state().log_dropped_bytes > 100_000)
    assert started.state().phase is ReplicaPhase.RUNNING
    ballast.unlink()
    (work / "free").touch()
    state = started.end()
    assert (state.exit_code, state.log_dropped_bytes > 100_000) == (0, True)
    lines = started.log().splitlines()
    assert lines[0] == "before"
    assert lines[-3:] == ["after 0", "after 1", "after 2"]
    assert f"[batuta: {state.log_dropped_bytes} bytes of output lost: No space left on device]" in lines
