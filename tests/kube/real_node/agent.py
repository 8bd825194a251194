"""What torchrun does for an elastic job, without torch: a rendezvous on replica 0, a worker for each round.

It is told by the same variables. Whoever comes is a member. When one comes or goes there is a new round:
each agent ends its worker and starts it again with its new rank and the new size. The worker is the command
line. This program runs in a container that has Python, and nothing else.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

_PATIENCE_S = 60.0
_LAST_WORD_S = 20.0
"""How long a worker that failed may hope that another one's leaving was the cause, and a round follows."""
_PAUSE_S = 0.1
_DONE = "done"


class Rendezvous:
    """Replica 0 keeps the list of members, and tells all of them when it changes."""

    def __init__(self, port: int, run: str, least: int) -> None:
        self._run, self._least = run, least
        self._members: dict[int, socket.socket] = {}
        self._rounds = 0
        self._change = threading.Lock()
        self._server = socket.create_server(("", port))
        threading.Thread(target=self._welcome, daemon=True).start()

    def _welcome(self) -> None:
        while True:
            link = self._server.accept()[0]
            threading.Thread(target=self._attend, args=(link,), daemon=True).start()

    def _attend(self, link: socket.socket) -> None:
        """One member, from its coming to its end."""
        with link, link.makefile() as words:
            run, _, replica = words.readline().strip().rpartition(" ")
            if run != self._run:
                return
            self._set(int(replica), link)
            with suppress(OSError):
                if words.readline().strip() != _DONE:
                    self._set(int(replica), None)

    def _set(self, replica: int, link: socket.socket | None) -> None:
        with self._change:
            if link is None:
                del self._members[replica]
            else:
                self._members[replica] = link
            if len(self._members) < self._least:
                return
            self._rounds += 1
            for rank, (_, member) in enumerate(sorted(self._members.items())):
                with suppress(OSError):
                    member.sendall(f"{self._rounds} {rank} {len(self._members)}\n".encode())


class Agent:
    """One member: its worker, in the round that was told last."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._worker: subprocess.Popen[bytes] | None = None
        signal.signal(signal.SIGTERM, self._leave)

    def run(self, link: socket.socket) -> int:
        """Until the worker ends by itself: its exit code."""
        patient_until = time.monotonic() + _PATIENCE_S
        with selectors.DefaultSelector() as selector:
            selector.register(link, selectors.EVENT_READ)
            while True:
                if selector.get_map() and selector.select(_PAUSE_S):
                    if told := link.recv(4096).decode().split("\n")[:-1]:
                        self._start(*told[-1].split())
                        patient_until = time.monotonic() + _LAST_WORD_S
                    else:
                        selector.unregister(link)
                code = self._worker.poll() if self._worker else None
                if code == 0:
                    with suppress(OSError):
                        link.sendall(f"{_DONE}\n".encode())
                    return 0
                if code is None and self._worker:
                    patient_until = time.monotonic() + _LAST_WORD_S
                if time.monotonic() > patient_until:
                    return code or 1
                if not selector.get_map():
                    time.sleep(_PAUSE_S)

    def _start(self, number: str, rank: str, size: str) -> None:
        self._end_worker()
        place = {"RANK": rank, "WORLD_SIZE": size, "TORCHELASTIC_RESTART_COUNT": number}
        self._worker = subprocess.Popen(self._command, env=os.environ | place)

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.terminate()
            self._worker.wait(_PATIENCE_S)

    def _leave(self, *_: object) -> None:
        self._end_worker()
        sys.exit(128 + signal.SIGTERM)


def connect(host: str, port: int, hello: str) -> socket.socket:
    """A connection to replica 0, which may come later, and whose name may be known later."""
    give_up = time.monotonic() + _PATIENCE_S
    while True:
        try:
            link = socket.create_connection((host, port), timeout=_PATIENCE_S)
        except OSError:
            if time.monotonic() > give_up:
                raise
            time.sleep(_PAUSE_S)
        else:
            link.sendall(f"{hello}\n".encode())
            return link


def main() -> int:
    env = os.environ
    host, _, port = env["PET_RDZV_ENDPOINT"].rpartition(":")
    if "is_host=true" in env["PET_RDZV_CONF"].split(","):
        Rendezvous(int(port), env["PET_RDZV_ID"], int(env["PET_NNODES"].split(":")[0]))
    agent = Agent(sys.argv[1:])
    with connect(host, int(port), f"{env['PET_RDZV_ID']} {env['PET_NODE_RANK']}") as link:
        return agent.run(link)


if __name__ == "__main__":
    sys.exit(main())
