"""Kills what its parent has left behind: a child of the tests that outlives them by a moment.

Its standard input is a pipe from the parent: `+PID` guards a process group, `-PID` forgets it. Its end
means that the parent is gone, by whatever way, and every group that is still guarded is killed. (The kernel's
parent-death signal would come when the thread ends that made the child, and only Linux has it.)
"""

import os
import signal
import sys
from contextlib import suppress


def main() -> None:
    guarded: set[int] = set()
    for line in sys.stdin:
        pid = int(line[1:])
        if line[0] == "+":
            guarded.add(pid)
        else:
            guarded.discard(pid)
    for pid in guarded:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
