"""Real servers and calls of `batuta` in processes of their own, to be killed at any moment: forked, or started."""

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from batuta.client.client import Client

FORK_SERVER = Path(__file__).with_name("fork_server.py")
BATUTA = Path(sys.executable).with_name("batuta")
READY_WITHIN_S = 60.0
GONE_WITHIN_S = 30.0
_PAUSE_S = 0.005


class ServerGone(Exception):
    """The server has ended although nobody wanted it to; what it said last."""


@dataclass
class ServerProcess:
    """One server. Its pid stays its own until `wait` has seen its end, so to kill it hits nobody else."""

    pid: int
    home: Path
    said: Path
    """What it writes to its standard output and error."""
    look: Callable[[], int | None]
    """Its exit code, None while it lives. Reaps it."""
    code: int | None = None

    @property
    def is_alive(self) -> bool:
        if self.code is None:
            self.code = self.look()
        return self.code is None

    def wait_ready(self, within_s: float = READY_WITHIN_S) -> str:
        """Returns its address when it answers requests: its own, not a former server's."""
        give_up = time.monotonic() + within_s
        while True:
            facts = self._facts()
            if facts.get("pid") == self.pid and is_ready(str(facts["url"])):
                return str(facts["url"])
            if not self.is_alive:
                raise ServerGone(f"server {self.pid} has ended with {self.code}:\n{self.last_words()}")
            assert time.monotonic() < give_up, f"not ready after {within_s} s:\n{self.last_words()}"
            time.sleep(_PAUSE_S)

    def kill(self) -> None:
        """kill -9, and waits until the process is gone. One that is gone already stays so."""
        self.tell(signal.SIGKILL)
        self.wait()

    def tell(self, number: signal.Signals) -> None:
        if self.is_alive:
            os.kill(self.pid, number)

    def end(self) -> int:
        """Ends it as Ctrl-C would, jobs go on; its exit code."""
        self.tell(signal.SIGTERM)
        return self.wait()

    def wait(self, within_s: float = GONE_WITHIN_S) -> int:
        _wait_for_end(self.pid, lambda: None if self.is_alive else self.code, within_s)
        assert not self.is_alive, f"server {self.pid} still lives after {within_s} s"
        assert self.code is not None
        return self.code

    def client(self, timeout_s: float = 30.0) -> Client:
        return Client(home=self.home, timeout_s=timeout_s)

    def cpu_s(self) -> float:
        """User and system time of the whole process so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def last_words(self, lines: int = 30) -> str:
        """The end of what it said, and of its log."""
        found = []
        for path in (self.said, self.home / "server.log"):
            with suppress(OSError):
                found += [f"--- {path}", *path.read_text(errors="replace").splitlines()[-lines:]]
        return "\n".join(found)

    def _facts(self) -> dict[str, Any]:
        try:
            return json.loads((self.home / "server.json").read_text())
        except (OSError, ValueError):
            return {}


def is_ready(url: str, timeout_s: float = 2.0) -> bool:
    return readiness(url, timeout_s)[0] == 200


def readiness(url: str, timeout_s: float = 2.0) -> tuple[int, str]:
    """What /readyz says, as status and text; 0 when nobody answers."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=timeout_s) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()
    except OSError as error:
        return 0, str(error)


def _wait_for_end(pid: int, look: Callable[[], int | None], within_s: float | None) -> None:
    """Returns at the end of a process, or after this time. It is reaped by `look` alone, so the pid stays its own."""
    if look() is not None:
        return
    process = os.pidfd_open(pid)
    try:
        select.select([process], [], [], within_s)
    finally:
        os.close(process)


class ForkedProcess:
    """A call of `batuta` that was forked, with what the tests use of `subprocess.Popen`."""

    def __init__(self, pid: int, look: Callable[[], int | None]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._look = look

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._look()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        _wait_for_end(self.pid, self.poll, timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """Starts servers that are ready in a fifth of a second. Those that are left at its end are killed."""

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self._said = folder / "servers.out"
        self._asking = threading.Lock()
        with self._said.open("ab") as said:
            self._helper = subprocess.Popen(
                [sys.executable, "-P", str(FORK_SERVER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                env=env if env is None else dict(env),
            )

    def start(self, home: Path, **options: Any) -> ServerProcess:
        """A server with UpOptions like these. It is not ready yet."""
        usual = {"virtual": True, "port": 0}
        pid = self._ask({"start": {**usual, **options, "home": str(home)}, "log": str(self._said)})["pid"]
        return ServerProcess(pid, home, self._said, lambda: self._ask({"look": pid})["code"])

    def run(
        self,
        words: Sequence[str],
        out: Path,
        err: Path | None = None,
        *,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        reads: str = os.devnull,
        alone: bool = False,
    ) -> ForkedProcess:
        """`batuta words`; what it says is added to the end of the files. `alone`: in a session of its own."""
        where = {"cwd": str(cwd), "env": dict(os.environ if env is None else env)}
        said = {"in": reads, "out": str(out), "err": str(err or out)}
        pid = self._ask({"run": [*words], "alone": alone, **where, **said})["pid"]
        return ForkedProcess(pid, lambda: self._ask({"look": pid})["code"])

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._helper.stdin is not None
        assert self._helper.stdout is not None
        with self._asking:
            self._helper.stdin.write(json.dumps(question) + "\n")
            self._helper.stdin.flush()
            answer = self._helper.stdout.readline()
        assert answer, f"the fork server has ended:\n{self._said.read_text(errors='replace')[-2000:]}"
        return json.loads(answer)

    def close(self) -> None:
        assert self._helper.stdin is not None
        assert self._helper.stdout is not None
        self._helper.stdin.close()
        self._helper.wait(GONE_WITHIN_S)
        self._helper.stdout.close()

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@cache
def fork_server() -> ForkServer:
    """Return the one that all tests of this process share."""
    folder = tempfile.TemporaryDirectory(prefix="batuta-forks-", ignore_cleanup_errors=True)
    server = ForkServer(Path(folder.name))

    def close() -> None:
        server.close()
        folder.cleanup()

    atexit.register(close)
    return server


def run_batuta(
    *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None, within_s: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """A call of `batuta` to its end, whatever the exit code, in a forked process."""
    with tempfile.TemporaryDirectory(prefix="batuta-cli-") as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = fork_server().run([*map(str, words)], out, err, cwd=cwd or Path.cwd(), env=env)
        try:
            code = process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            said = f"{out.read_text()}\n{err.read_text()}"
            raise AssertionError(f"batuta {' '.join(map(str, words))} does not end:\n{said}") from None
        return subprocess.CompletedProcess(words, code, out.read_text(), err.read_text())


class PlainServers:
    """Starts servers by the words of `batuta up`, as people do. Those that are left at its end are killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[ServerProcess] = []

    def start(
        self,
        home: Path,
        *words: str,
        prefix: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> ServerProcess:
        """`batuta up --virtual --port 0 …`. It is not ready yet.

        `prefix` is a command that runs it, and has to become it (exec) for the pid to be the server's.
        """
        said = self._folder / f"up-{len(self._started)}.out"
        command = ["up", "--virtual", "--port", "0", "--home", str(home), *words]
        child: subprocess.Popen[bytes] | ForkedProcess
        if prefix:
            with said.open("ab") as file:
                child = subprocess.Popen(
                    [*prefix, str(BATUTA), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                    env=env,
                    cwd=cwd or self._folder,
                )
        else:
            child = fork_server().run(command, said, cwd=cwd or self._folder, env=env, alone=True)
        server = ServerProcess(child.pid, home, said, child.poll)
        self._started.append(server)
        return server

    def close(self) -> None:
        for server in self._started:
            server.kill()

    def __enter__(self) -> "PlainServers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
