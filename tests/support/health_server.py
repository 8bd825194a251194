"""A real server whose GPUs are harmed: what it makes of them, as people see it."""

import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from batuta.apitypes.resources import HealthShown, Job, Node
from batuta.client.client import Client
from batuta.gpu.health.rules import default_rules_text
from tests.support.cli_server import Cli
from tests.support.server_process import ForkServer, ServerProcess

WITHIN_S = 30.0
T = TypeVar("T")


def write_rules(path: Path, **limits: str) -> Path:
    """Batuta's own rules with other limits."""
    lines = default_rules_text().splitlines()
    for name, value in limits.items():
        key = name.replace("_", "-")
        (place,) = (i for i, line in enumerate(lines) if line.startswith(f"  {key}:"))
        lines[place] = f"  {key}: {value}"
    path.write_text("\n".join(lines) + "\n")
    return path


@dataclass
class HealthServer:
    """One state directory, and servers one after the other."""

    forks: ForkServer
    home: Path
    options: dict[str, Any]
    process: ServerProcess

    @classmethod
    def start(cls, forks: ForkServer, folder: Path, **options: Any) -> "HealthServer":
        home = folder / "home"
        process = forks.start(home, **options)
        process.wait_ready()
        return cls(forks, home, options, process)

    def restart_after(self, end: Callable[[ServerProcess], object]) -> None:
        end(self.process)
        self.process = self.forks.start(self.home, **self.options)
        self.process.wait_ready()

    @property
    def client(self) -> Client:
        return self.process.client()

    @property
    def cli(self) -> Cli:
        return Cli(self.home, self.home.parent)

    def harm(self, node: str, gpu: int, *words: str) -> None:
        self.cli.ok("vgpu", "inject", node, "--gpu", str(gpu), *words)

    def submit(self, run: str, **task: Any) -> str:
        with self.client as client:
            return client.submit({"run": run, "resources": {"accelerators": 1}, **task}).id

    def job(self, job: str) -> Job:
        with self.client as client:
            return client.job(job)

    def node(self, name: str) -> Node:
        with self.client as client:
            return next(node for node in client.nodes() if node.name == name)

    def health(self, name: str, gpu: int | None = None) -> HealthShown:
        """What is known of a node or GPU; of one that nothing is known of, that it is healthy."""
        node = self.node(name)
        found = node.health if gpu is None else node.gpus[gpu].health
        return found or HealthShown("healthy")

    def metrics(self) -> str:
        url = self.process.wait_ready()
        with urllib.request.urlopen(f"{url}/metrics", timeout=WITHIN_S) as answer:
            return answer.read().decode()

    def until(self, look: Callable[[], T], done: Callable[[T], object]) -> T:
        give_up = time.monotonic() + WITHIN_S
        while not done(found := look()):
            assert time.monotonic() < give_up, f"still {found}\n{self.process.last_words()}"
            time.sleep(0.05)
        return found

    def until_running(self, job: str, restarts: int = 0) -> Job:
        """The job when it makes progress, after at least so many restarts."""
        return self.until(
            lambda: self.job(job),
            lambda found: found.state == "RUNNING" and found.restarts >= restarts and found.progress,
        )

    def until_state(self, job: str, state: str) -> Job:
        return self.until(lambda: self.job(job), lambda found: found.state == state)

    def until_health(self, name: str, state: str, gpu: int | None = None) -> HealthShown:
        return self.until(lambda: self.health(name, gpu), lambda found: found.state == state)

    def close(self) -> None:
        """Ends the server and its jobs."""
        if self.process.is_alive:
            with self.client as client:
                client.shut_down(keep_jobs=False)
            self.process.wait(WITHIN_S)
