"""A node's log that is written and rotated while its agents and operators are killed, a hundred times each.

Both are the real ones, up to the API server: that is a file here, changed as a whole. Run as a program,
because it forks. It prints what the operators have counted.
"""

import asyncio
import fcntl
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from batuta.backends.kube import names, objects
from batuta.backends.kube.health.annotations import read_seen
from batuta.backends.kube.health.node_reports import JobsOnNodes, NodeReportReader
from batuta.backends.kube.health.state import from_text, to_text
from batuta.bootstrap.agent_health import HealthNotesPublisher, KernelNotes
from batuta.core.health_rules import Finding, HealthRules
from batuta.gpu.health.kernel_log import LogFile
from batuta.gpu.health.log_queue import KernelLogQueue
from batuta.gpu.health.nvml_source import PciAddresses
from tests.unit.gpu.health.killed_readers import Daemon

CODE = ("/batuta/gpu/health/", "/batuta/bootstrap/agent_", "/kube/health/")
RULES = HealthRules(())
AGENT_LINES = 8000
"""How many lines an agent lives at most. A turn takes 5,600 when 64 notes and more wait: were all killed before that,
as can happen once operators come too late for a while, nothing would ever get through again."""


class Server:
    """The annotations of one node. Each change is made whole, or not."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "node.json"

    def patch(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            now = json.loads(self._path.read_text()) if self._path.exists() else {}
            found = {key: text for key, text in {**now, **changes}.items() if text is not None}
            replace(self._path, json.dumps(found))
        return found

    async def publish(self, text: str) -> int:
        found = self.patch({names.HEALTH_NOTES: text or None})
        return read_seen(found.get(names.HEALTH_SEEN, ""))


def replace(path: Path, text: str) -> None:
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(text)
    fresh.replace(path)


def be_agent(folder: Path, turns: int) -> None:
    """Reads the log and tells of it; it asks each time whether it was heard."""
    clock = iter(range(0, 1 << 40, 100)).__next__

    async def work() -> None:
        log = LogFile(folder / "kern.log", from_start=True)
        with KernelLogQueue(folder / "ledger.json", log, time.time) as ledger:
            addresses = PciAddresses(folder / "gpus.json", lambda: {"0000:3b:00": 0})
            notes = KernelNotes(ledger, addresses, lambda pid, gpu: ())
            teller = HealthNotesPublisher(notes, Server(folder).publish, clock)
            for _ in range(turns):
                await teller.turn()
            assert not ledger.missed, ledger.missed

    asyncio.run(work())


def be_operator(folder: Path, turns: int) -> None:
    """Hears the node, stores what it heard in one piece, and acknowledges."""
    server, stored = Server(folder), folder / "stored.json"
    for _ in range(turns):
        known: dict[str, Any] = {"memory": "", "texts": []}
        if stored.exists():
            known = json.loads(stored.read_text())
        heard: list[Finding] = []
        memory = from_text(RULES, known["memory"])
        node = objects.Node(
            metadata=objects.Meta(name="n", annotations=server.patch({})),
            status=objects.NodeStatus(allocatable={"nvidia.com/gpu": "1"}),
        )
        hearing = NodeReportReader(JobsOnNodes({}, {}), ["nvidia.com/gpu"], "", heard.append)
        hearing.hear(memory, node, time.time())
        texts = [*known["texts"], *(finding.text for finding in heard)]
        replace(stored, json.dumps({"memory": to_text(memory), "texts": texts}))
        server.patch({names.HEALTH_SEEN: str(memory.seen.get("n", 0))})


def die_after(lines: int) -> None:
    """kill -9 by its own hand, when so many lines of our code have run, in whichever thread."""
    left = lines

    def trace(frame: FrameType, event: str, value: Any) -> Any:
        nonlocal left
        if not any(part in frame.f_code.co_filename for part in CODE):
            return None
        left -= 1
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    threading.settrace(trace)
    sys.settrace(trace)


def start(be: Callable[[Path, int], None], folder: Path, lines: int) -> int:
    child = os.fork()
    if not child:
        die_after(lines)
        be(folder, 20)
        os._exit(0)
    return child


def wait(child: int) -> bool:
    """Whether it was killed; else it has run to its end, without an error."""
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in {0, -signal.SIGKILL}, status
    return os.WIFSIGNALED(status)


def main(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    daemon = Daemon(folder / "kern.log", chance)
    be_agent(folder, 1)
    agents = operators = 0
    while agents < 100 or operators < 100:
        agent = start(be_agent, folder, chance.randrange(1, AGENT_LINES))
        operator = start(be_operator, folder, chance.randrange(1, 3000))
        daemon.burst()
        agents += wait(agent)
        operators += wait(operator)
    midway = len(json.loads((folder / "stored.json").read_text())["texts"])
    for _ in range(daemon.rotations + daemon.written // 64 + 5):
        be_agent(folder, 2)
        be_operator(folder, 1)
    texts = json.loads((folder / "stored.json").read_text())["texts"]
    pids = [int(text.partition("=")[2].partition(",")[0]) for text in texts]
    told = {"written": daemon.written, "rotations": daemon.rotations, "midway": midway, "pids": pids}
    print(json.dumps(told | {"agents": agents, "operators": operators}))  # noqa: T201 - the answer


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
