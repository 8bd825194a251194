"""A log that is written and rotated while its readers are killed, a hundred times, at any line of their code.

Run as a program, because it forks. It prints what was counted.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from batuta.gpu.health.kernel_log import LogFile, parse_line
from batuta.gpu.health.log_queue import KernelLogQueue

CODE = ("/batuta/gpu/health/", "/killed_readers.py", "/pathlib.py", "/json/")


class Daemon:
    """Writes lines, some of them in two pieces, and rotates as logrotate does."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        self.path, self.chance = path, chance
        self.file = path.open("ab", buffering=0)
        self.written = self.rotations = 0

    def burst(self) -> None:
        for _ in range(self.chance.randrange(12)):
            if self.chance.random() < 0.05:
                self.rotate()
            self.write()
            os.sched_yield()

    def rotate(self) -> None:
        number = self.rotations = self.rotations + 1
        for k in range(number - 1, 0, -1):
            os.rename(f"{self.path}.{k}", f"{self.path}.{k + 1}")
            os.sched_yield()
        os.rename(self.path, f"{self.path}.1")
        fresh = self.path.open("ab", buffering=0)
        for _ in range(self.chance.randrange(3)):
            os.sched_yield()
            self.write()  # nobody has told it yet
        self.file.close()
        self.file = fresh

    def write(self) -> None:
        if self.chance.random() < 0.3:
            self.file.write(b"Nov 16 10:00:00 n1 kernel: usb 1-1: new high-speed USB device\n")
            return
        self.written += 1
        line = f"kernel: NVRM: Xid (PCI:0000:3b:00): 31, pid={self.written}, name=python\n".encode()
        cut = self.chance.randrange(len(line)) if self.chance.random() < 0.3 else 0
        if cut:
            self.file.write(line[:cut])
            os.sched_yield()
        self.file.write(line[cut:])


def read_on(log: Path, folder: Path, steps: int) -> None:
    """What an agent does: notes lines, counts them, and remembers how far it has counted."""
    counted = folder / "counted.json"
    with KernelLogQueue(folder / "ledger.json", LogFile(log, from_start=True), time.time) as ledger:
        for _ in range(steps):
            ledger.collect()
            known: dict[str, Any] = {"last": 0, "pids": []}
            if counted.exists():
                known = json.loads(counted.read_text())
            for note in ledger.waiting:
                if note.number > known["last"]:
                    error = parse_line(note.line)
                    known = {"last": note.number, "pids": [*known["pids"], error and error.pid]}
            fresh = folder / "counted.new"
            fresh.write_text(json.dumps(known))
            fresh.replace(counted)
            ledger.done(known["last"])
            assert not ledger.missed, ledger.missed


def die_after(lines: int) -> None:
    """kill -9 by its own hand, when so many lines of our code have run."""
    left = lines

    def trace(frame: FrameType, event: str, value: Any) -> Any:
        nonlocal left
        if not any(part in frame.f_code.co_filename for part in CODE):
            return None
        left -= 1
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def main(folder: Path, seed: int) -> None:
    chance, log = random.Random(seed), folder / "kern.log"
    daemon = Daemon(log, chance)
    # Whoever has never been there is a newcomer, and need not know what was rotated away before.
    read_on(log, folder, 1)
    killed = 0
    while killed < 100:
        lines = chance.randrange(1, 2000)
        child = os.fork()
        if not child:
            die_after(lines)
            read_on(log, folder, 50)
            os._exit(0)
        daemon.burst()
        _, status = os.waitpid(child, 0)
        # One that was not killed has run to its end, without an error.
        assert os.waitstatus_to_exitcode(status) in {0, -signal.SIGKILL}, status
        killed += os.WIFSIGNALED(status)
    read_on(log, folder, daemon.rotations * 2 + 5)
    counted = json.loads((folder / "counted.json").read_text())["pids"]
    print(  # noqa: T201 - the answer
        json.dumps({"written": daemon.written, "rotations": daemon.rotations, "killed": killed, "pids": counted})
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
