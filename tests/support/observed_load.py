"""A real `batuta up --virtual` under load, for whoever looks at its metrics."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from batuta.client.client import Client
from batuta.gpu.local_nodes import virtual_log
from batuta.gpu.vgpu.inject import write_xid
from tests.support.server_process import PlainServers

_GPU = {"resources": {"accelerators": 1}}
_TRAINS = r"""
for i in $(seq 1000); do
  printf '{"step": %d, "total_steps": 1000, "samples": %d}\n' "$i" "$((64 * i))" >>"$BATUTA_PROGRESS"
  sleep 0.05
done
"""
_QUEUES = {"rich": {"quota": {"*": 6}, "cohort": "all"}, "poor": {"quota": {"*": 2}, "cohort": "all"}}
_WITHIN_S = 40.0


@dataclass(slots=True)
class ObservedServer:
    """A server whose metrics anybody may read."""

    url: str
    client: Client
    home: Path

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")

    def make_load(self) -> str:
        """Jobs train, end, fail, wait, borrow and are preempted; the id of one that trains on."""
        client = self.client
        for name, queue in _QUEUES.items():
            client.set_queue(name, queue)
        # The driver of a GPU says something that is no reason to worry.
        write_xid(virtual_log(self.home), "node-0", "00000000:01:00.0", 92, None)
        for ends in ("true", "exit 3"):
            client.submit({"name": "short", "run": ends, **_GPU}, queue="rich")
        trains = client.submit({"name": "trains", "run": _TRAINS, "num_nodes": 2, **_GPU}, queue="poor").id
        borrower = client.submit({"name": "borrows", "run": "sleep 1000", "num_nodes": 5, **_GPU}, queue="poor").id
        _wait(client, borrower, "RUNNING")
        # Its queue gets back what it lent.
        lender = client.submit({"name": "reclaims", "run": "sleep 1000", "num_nodes": 6, **_GPU}, queue="rich").id
        _wait(client, lender, "RUNNING")
        _wait(client, trains, "RUNNING")
        return trains


@contextmanager
def observed_server(folder: Path, *words: str) -> Iterator[ObservedServer]:
    """Two virtual nodes with four GPUs each."""
    home = folder / "home"
    with PlainServers(folder) as servers:
        up = servers.start(home, "--open-metrics", "--nodes", "2", "--gpus", "4", "--policy", "fifo", *words)
        url = up.wait_ready()
        with Client(home=home) as client:
            try:
                yield ObservedServer(url, client, home)
            finally:
                # Nothing that it started is left behind.
                client.shut_down(keep_jobs=False)
                up.wait()


def _wait(client: Client, job: str, state: str) -> None:
    give_up = time.monotonic() + _WITHIN_S
    while (found := client.job(job)).state != state:
        assert time.monotonic() < give_up, f"{found.name} is still {found.state}"
        time.sleep(0.05)
