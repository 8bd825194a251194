"""`make kube-up`: a control plane with fake GPU nodes in the background, for whoever develops against one."""

import argparse
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

from tests.support.kube.cache import cache_folder
from tests.support.kube.catalog import PROGRAMS
from tests.support.kube.certificates import NoOpenSsl
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.flags import Options
from tests.support.kube.launch import program_names
from tests.support.kube.nodes import NodeShape
from tests.support.kube.programs import BuildFailed, program
from tests.support.kube.toolchain import REPO, NoToolchain

OPTIONS = Options(controllers=True, scheduler=True)
_UP_WITHIN_S = 180.0
_DOWN_WITHIN_S = 30.0
_PAUSE_S = 0.1


def main() -> int:
    parser = argparse.ArgumentParser(prog="make kube-up", description=__doc__)
    parser.add_argument("verb", choices=["up", "down", "serve"])
    parser.add_argument("--nodes", type=int, default=8, help="fake nodes (8)")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs on each of them (8)")
    said = parser.parse_args()
    folder = cache_folder() / "developer"
    folder.mkdir(parents=True, exist_ok=True)
    match said.verb:
        case "up":
            return up(folder, said.nodes, said.gpus)
        case "down":
            return down(folder)
    return serve(folder, said.nodes, said.gpus)


def up(folder: Path, nodes: int, gpus: int) -> int:
    """Starts it, unless it runs already, and says how to use it."""
    if not _runs(folder):
        try:
            for name in [*program_names(OPTIONS), "kubectl"]:
                program(name)
        except (BuildFailed, NoToolchain) as problem:
            return _complain(str(problem))
        (folder / "ready.json").unlink(missing_ok=True)
        with (folder / "serve.log").open("wb") as log:
            command = [sys.executable, "-m", __spec__.name, "serve", f"--nodes={nodes}", f"--gpus={gpus}"]
            server = subprocess.Popen(
                command, cwd=REPO, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        give_up = time.monotonic() + _UP_WITHIN_S
        while not (folder / "ready.json").exists():
            if server.poll() is not None or time.monotonic() > give_up:
                return _complain(f"not ready:\n{(folder / 'serve.log').read_text()[-3000:]}")
            time.sleep(_PAUSE_S)
    _introduce(folder)
    return 0


def down(folder: Path) -> int:
    """Ends it, and removes what it has stored."""
    if not _runs(folder):
        sys.stdout.write("no control plane is running\n")
        return 0
    os.kill(int((folder / "pid").read_text()), signal.SIGTERM)
    give_up = time.monotonic() + _DOWN_WITHIN_S
    while _runs(folder):
        if time.monotonic() > give_up:
            return _complain(f"still running after {_DOWN_WITHIN_S:.0f} s; log: {folder / 'serve.log'}")
        time.sleep(_PAUSE_S)
    sys.stdout.write("stopped\n")
    return 0


def serve(folder: Path, nodes: int, gpus: int) -> int:
    """Runs it until SIGTERM. The lock tells the others that the pid in the file is still this process."""
    with (folder / "running").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return _complain("another one has just been started")
        (folder / "pid").write_text(f"{os.getpid()}")
        ended = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: ended.set())
        data = folder / "cluster"
        shutil.rmtree(data, ignore_errors=True)
        try:
            with ControlPlane(data, OPTIONS) as cluster:
                cluster.add_nodes(nodes, NodeShape(gpus=gpus))
                facts = {"kubeconfig": str(cluster.kubeconfig_path), "nodes": nodes, "gpus": gpus}
                _write(folder / "ready.json", json.dumps(facts))
                ended.wait()
        except NoOpenSsl as problem:
            return _complain(str(problem))
        shutil.rmtree(data, ignore_errors=True)
    return 0


def _runs(folder: Path) -> bool:
    try:
        with (folder / "running").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _introduce(folder: Path) -> None:
    facts = json.loads((folder / "ready.json").read_text())
    kubernetes = PROGRAMS["kube-apiserver"].version
    sys.stdout.write(
        f"Kubernetes {kubernetes} with {facts['nodes']} fake nodes of {facts['gpus']} GPUs each\n\n"
        f"  export KUBECONFIG={facts['kubeconfig']}\n"
        f"  alias kubectl={program('kubectl')}\n\n"
        f"logs: {folder / 'cluster'}   stop: make kube-down\n"
    )


def _write(path: Path, text: str) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text)
    fresh.rename(path)


def _complain(text: str, to: IO[str] = sys.stderr) -> int:
    to.write(f"{text}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
