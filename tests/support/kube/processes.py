"""Programs of a control plane as child processes: own log, own group, gone when the tests are gone."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.server_process import ForkedProcess, fork_server

_GUARD = Path(__file__).with_name("guard.py")
_GONE_WITHIN_S = 30.0


class ProgramEnded(Exception):
    """A program has ended although nobody wanted it to; the end of its log."""


class Guard:
    """Starts programs, and sees to it that none outlives this process."""

    def __init__(self) -> None:
        self._pipe = subprocess.Popen(
            [sys.executable, "-I", str(_GUARD)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the tests; the guard ends after them
            text=True,
        )

    def start(
        self, program: Path, flags: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> "RunningProgram":
        """Starts a program; what it says is added to the end of its log."""
        with log.open("ab") as file:
            child = subprocess.Popen(
                [program, *flags],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                cwd=log.parent,
                env=None if env is None else dict(env),
            )
        self._tell(f"+{child.pid}")
        return RunningProgram(program.name, child, log, self)

    def fork_batuta(self, words: Sequence[str], log: Path) -> "RunningProgram":
        """Starts `batuta words`, without the seconds that it takes to import it."""
        child = fork_server().run(words, log, cwd=log.parent, alone=True)
        self._tell(f"+{child.pid}")
        return RunningProgram("batuta", child, log, self)

    def forget(self, pid: int) -> None:
        self._tell(f"-{pid}")

    def close(self) -> None:
        assert self._pipe.stdin is not None
        self._pipe.stdin.close()
        self._pipe.wait(_GONE_WITHIN_S)

    def _tell(self, line: str) -> None:
        assert self._pipe.stdin is not None
        print(line, file=self._pipe.stdin, flush=True)


class RunningProgram:
    """One program that was started; it may have ended since."""

    def __init__(self, name: str, child: "subprocess.Popen[bytes] | ForkedProcess", log: Path, guard: Guard) -> None:
        self.name = name
        self.log = log
        self._child = child
        self._guard = guard

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_alive(self) -> bool:
        return self._child.poll() is None

    def check(self) -> None:
        """Raises if the program has ended."""
        if not self.is_alive:
            raise ProgramEnded(f"{self.name} has ended with {self._child.returncode}; {self.last_words()}")

    def stop(self, gracefully: bool = False, within_s: float = _GONE_WITHIN_S) -> None:
        """Ends the program, by SIGKILL unless it is to end in its own way, and waits until it is gone."""
        if self.is_alive and gracefully:
            self._child.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(within_s)
        # Forgotten before it is reaped: the number stays its own until then.
        self._guard.forget(self.pid)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._child.wait(within_s)

    def pause(self) -> None:
        """Takes the processor away from it, until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self.is_alive:  # and if it ends now, its number stays its own until it is reaped
            os.kill(self.pid, number)

    def cpu_s(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def last_words(self, lines: int = 20) -> str:
        """The end of its log, and where all of it is."""
        said = self.log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join([f"log: {self.log}", *said])
