"""The state directory that a local server leaves behind after a busy time with three kill -9, as plain files.

`record` runs a real server by the command line alone. `pack` puts what it left into an archive in which this
machine has no name: the directory is `@HOME@`, the user is ada. `unpack` puts it anywhere again.
"""

import gzip
import hashlib
import io
import os
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, closing, contextmanager
from pathlib import Path
from typing import Any

from batuta.client.client import Client
from tests.support.process_table import end_all, wait_for_none
from tests.support.server_process import PlainServers
from tests.support.stored_form import dump_database, load_database

MARK = "@HOME@"
"""Stands for the path of the state directory in every file of the archive."""
DUMP = "journal.sql"
_KEPT = ("jobs", "health/ledger.json", "token", "server.json", "lock")
"""What a later server reads. It makes the rest anew; the journal is there as SQL."""
_WITHIN_S = 60.0
TRAINER = """
number() { cat "$BATUTA_CONTROL/$1" 2>/dev/null || echo 0; }
at="$BATUTA_CHECKPOINT_DIR/at"
n=$(cat "$at" 2>/dev/null || echo 0)
trap : USR1
while [ "$n" -lt 100000 ]; do
  sleep 0.1
  n=$((n + 1))
  [ "$BATUTA_REPLICA" = 0 ] || continue
  echo "{\\"step\\": $n, \\"total_steps\\": 100000, \\"loss\\": 0.5}" >>"$BATUTA_PROGRESS"
  asked=$(number checkpoint-request)
  if [ "$asked" -gt "$(number checkpoint-done)" ]; then
    echo $n >"$at.new" && mv "$at.new" "$at"
    echo $asked >"$BATUTA_CONTROL/done.new" && mv "$BATUTA_CONTROL/done.new" "$BATUTA_CONTROL/checkpoint-done"
  fi
done
"""
"""An elastic job that reports its progress and saves when it is asked; it needs a shell and nothing else."""
QUOTA = """
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: any}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: Cohort
metadata: {name: research}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: WorkloadPriorityClass
metadata: {name: urgent}
value: 5
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: team-a}
spec:
  cohort: research
  namespaceSelector: {}
  preemption: {withinClusterQueue: LowerPriority, reclaimWithinCohort: Any}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors:
    - name: any
      resources: [{name: nvidia.com/gpu, nominalQuota: 2, borrowingLimit: 1}]
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {name: team-a, namespace: default}
spec: {clusterQueue: team-a}
"""
HELLO = """
echo hello
echo '{"accuracy": 0.75}' >"$BATUTA_CONTROL/result.json"
"""


def task(name: str, run: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"accelerators": "gpu:1"}, "run": run, **more}


class Recording:
    """A server that is started, asked for something and killed, again and again."""

    def __init__(self, folder: Path, servers: PlainServers) -> None:
        self.folder, self.home = folder, folder / "home"
        self._servers = servers
        self._env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(folder),
            "USER": "ada",
            "LOGNAME": "ada",
            "LANG": "C.UTF-8",
            # The libraries of virtual GPUs are compiled once, not for each recording.
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
        }

    def until(self, look: Callable[[], Any], done: Callable[[Any], bool]) -> Any:
        give_up = time.monotonic() + _WITHIN_S
        while not done(found := look()):
            assert time.monotonic() < give_up, f"still {found}"
            time.sleep(0.05)
        return found

    @contextmanager
    def life(self, *words: str, clean: bool = False) -> Iterator[Client]:
        """One life of a server: at its end it is killed, or ended in order, which writes a snapshot."""
        # Where root runs the tests, Ada has no account of her own.
        words = ("--nodes", "2", "--gpus", "4", "--jobs-run-as-me", *words)
        server = self._servers.start(self.home, *words, env=self._env)
        server.wait_ready()
        with server.client() as client:
            yield client
        if clean:
            assert server.end() == 0, server.last_words()
        else:
            server.kill()

    def wait(self, client: Client, job: str, *states: str) -> Any:
        return self.until(lambda: client.job(job), lambda found: found.state in states)

    def steps(self, client: Client, job: str, more: int) -> None:
        """Waits until a job has reported so many steps more."""
        begun = self._step(client, job)
        self.until(lambda: self._step(client, job), lambda step: step >= begun + more)

    def _step(self, client: Client, job: str) -> int:
        progress = client.job(job).progress
        return 0 if progress is None or progress.step is None else progress.step


def record(folder: Path) -> Path:
    """Runs a server through four lives and returns its state directory; nothing of it runs any more."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with PlainServers(folder) as servers:
            _live(Recording(folder, servers))
    finally:
        end_all(folder / "home")
    assert not wait_for_none(folder / "home")
    return folder / "home"


def _live(run: Recording) -> None:
    elastic = {"min_nodes": 1, "max_nodes": 4, "checkpoint": "on-signal"}
    with run.life("--policy", "elastic-fifo", "--user-priority", "10") as client:
        client.apply_quota([("quota.yaml", QUOTA)])
        with chdir("/"):  # what a submit sends has the folder in which it is called
            client.submit(task("hello", HELLO), key="hello")
        client.submit(task("broken", "exit 3"), key="broken")
        client.submit(task("no-setup", "true", setup="exit 4"), key="no-setup")
        for job, state in (("hello", "SUCCEEDED"), ("broken", "FAILED"), ("no-setup", "FAILED_SETUP")):
            run.wait(client, job, state)
        client.submit(task("trainer", TRAINER, num_nodes=2, elastic=elastic), key="trainer")
        run.steps(client, "trainer", 3)
        client.resize("trainer", 2)
        run.until(lambda: client.job("trainer"), lambda job: job.gpus.now == 2 and job.state == "RUNNING")
        run.steps(client, "trainer", 3)
    # Killed while the trainer runs: the next server finds it.
    with run.life() as client:
        run.wait(client, "trainer", "RUNNING")
        client.submit(task("team", "sleep 1000", num_nodes=2), queue="team-a", key="team")
        client.submit(task("behind", "sleep 1000", num_nodes=2), queue="team-a", key="behind")
        client.submit(task("given-up", "sleep 1000"), key="given-up")
        client.submit(task("parked", "sleep 1000"), key="parked")
        client.submit({"name": "prepare", "resources": {"cpus": 1}, "run": "sleep 1000"}, key="prepare")
        for job in ("team", "given-up", "parked", "prepare"):
            run.wait(client, job, "RUNNING")
        client.cancel("given-up")
        client.park("parked")
        run.wait(client, "given-up", "CANCELLED")
        run.until(lambda: client.job("parked"), lambda job: job.gpus.now == 0)
        client.set_priority("behind", 3)
        client.set_queue("night", {"quota": {"*": 1}, "held": True})
        client.submit(task("at-night", "sleep 1000"), queue="night", key="at-night")
    with run.life(clean=True) as client:
        _harm_gpu(run.home)
        run.until(client.nodes, lambda nodes: not all(gpu.healthy for node in nodes for gpu in node.gpus))
        client.create_token("grace", "viewer")
        client.eta()
        client.unpin("trainer")
        client.set_policy("afs-l")
        client.cordon("node-1")
        run.wait(client, "trainer", "RUNNING")
    # Ended in order, so there is a snapshot; what follows is in the journal alone.
    with run.life() as client:
        client.submit(task("late", "sleep 1000"), key="late")
        run.wait(client, "trainer", "RUNNING")
        run.wait(client, "late", "RUNNING")
        run.steps(client, "trainer", 3)


def _harm_gpu(home: Path) -> None:
    """A virtual GPU falls off the bus."""
    words = ("vgpu", "inject", "node-1", "--gpu", "3", "--xid", "79", "--home", str(home))
    subprocess.run([sys.executable, "-m", "batuta", *words], check=True, capture_output=True)


# ---------------------------------------------------------------------------------------- as an archive

_ARCHIVED_TOKEN = "batuta_token-of-the-recorded-server"
_NO_BOOT = "00000000-0000-0000-0000-000000000000"
"""No machine has it: a process that happens to have a recorded number is never taken for a job's."""


def pack(home: Path) -> bytes:
    """The state directory as an archive. Secrets and names of this machine are others in it."""
    token = (home / "token").read_text().strip()
    changes = {
        token: _ARCHIVED_TOKEN,
        _hash(token): _hash(_ARCHIVED_TOKEN),
        Path("/proc/sys/kernel/random/boot_id").read_text().strip(): _NO_BOOT,
        str(home): MARK,
        str(home.parent): f"{MARK}/user",
        os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"): f"{MARK}/user/cache",
        tempfile.gettempdir() + "/batuta-": f"{MARK}/user/batuta-",
    }
    with closing(sqlite3.connect(home / "journal.db")) as journal:
        for (key,) in journal.execute("SELECT value FROM settings WHERE key = 'session-key'"):
            changes[key] = "00" * 32

    def neutral(text: str) -> bytes:
        for before, after in changes.items():
            text = text.replace(before, after)
        return text.encode()

    files = {DUMP: neutral(dump_database(home / "journal.db"))}
    for kept in _KEPT:
        for path in sorted([home / kept, *(home / kept).rglob("*")]):
            if path.is_file():
                files[str(path.relative_to(home))] = neutral(path.read_text())
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            facts = tarfile.TarInfo(name)
            facts.size, facts.mode = len(content), 0o600
            archive.addfile(facts, io.BytesIO(content))
    return gzip.compress(out.getvalue(), 9, mtime=0)


def unpack(archive: Path, home: Path) -> None:
    """Makes the state directory again, at another place."""
    home.mkdir(mode=0o700)
    with tarfile.open(archive) as files:
        for facts in files.getmembers():
            source = files.extractfile(facts)
            assert source is not None
            text = source.read().decode().replace(MARK, str(home))
            if facts.name == DUMP:
                load_database(text, home / "journal.db")
                continue
            path = home / facts.name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o600)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
