"""Starts and stops the programs of one control plane, and waits until each is ready."""

import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.kube import flags
from tests.support.kube.access import ADMINS, Access
from tests.support.kube.flags import LOOPBACK, Options
from tests.support.kube.ports import free_ports
from tests.support.kube.processes import Guard, RunningProgram
from tests.support.kube.programs import program

READY_WITHIN_S = 120.0
_PAUSE_S = 0.05
# Some serve a certificate that they have made themselves; whether it is up is all that is asked here.
_ANY_SERVER = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_ANY_SERVER.check_hostname, _ANY_SERVER.verify_mode = False, ssl.CERT_NONE


class NotReady(Exception):
    """A program did not get ready in time; the end of its log, and where all of it is."""


class Launch:
    """The programs of one control plane. A port stays the same when its program is started again."""

    def __init__(self, folder: Path, options: Options) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.audit_log = folder / "audit.log"
        self._folder = folder
        self._options = options
        # A build may take minutes: before anything runs.
        self._paths: Mapping[str, Path] = {name: program(name) for name in program_names(options)}
        *ports, self._peer_port = free_ports(len(self._paths) + 1)
        self._ports = dict(zip(self._paths, ports, strict=True))
        self.access = Access(folder, options.address, self._ports["kube-apiserver"])
        self._guard = Guard()
        self._running: dict[str, RunningProgram] = {}
        self.starts: dict[str, list[tuple[float, float]]] = {}
        """By program that was waited for: when it was started and when it was ready, in Unix seconds."""

    @property
    def etcd_url(self) -> str:
        return f"http://{LOOPBACK}:{self._ports['etcd']}"

    def start_all(self) -> None:
        """Starts the programs in the order in which they need each other: all need the first two."""
        store, server, *others = self._paths
        for name in (store, server):
            self.start(name)
        for name in others:
            self._spawn(name, self._paths[name], self._flags(name))
        for name in others:
            self._wait_ready(name)

    def start(self, name: str) -> RunningProgram:
        """Starts one program, and returns when it is ready."""
        begun_s = time.time()
        running = self._spawn(name, self._paths[name], self._flags(name))
        self._wait_ready(name)
        self.starts.setdefault(name, []).append((begun_s, time.time()))
        return running

    def run(self, name: str, words: Sequence[str]) -> RunningProgram:
        """Starts one more program of the catalog; whether it is ready is for the caller to see."""
        return self._spawn(name, program(name), words)

    def _spawn(self, name: str, path: Path, words: Sequence[str]) -> RunningProgram:
        assert name not in self._running, f"{name} runs already"
        # Nothing may read a configuration of the person who runs the tests: KWOK would, from its folder.
        env = {"HOME": str(self._folder), "KWOK_WORKDIR": str(self._folder / "kwok"), "PATH": os.defpath}
        # They hold little, and look for garbage a quarter as often: an API server that learns definitions makes much.
        env["GOGC"] = "400"
        self._running[name] = self._guard.start(path, words, self._folder / f"{name}.log", env)
        return self._running[name]

    def stop(self, name: str, gracefully: bool = False) -> None:
        """Ends one program, by SIGKILL if not in its own way."""
        self._running.pop(name).stop(gracefully)

    def stop_all(self) -> None:
        for name in reversed([*self._running]):
            self.stop(name)
        self._guard.close()

    def pause(self) -> None:
        """Lets all programs sleep, those first that ask others."""
        for running in reversed(self._running.values()):
            running.pause()

    def resume(self) -> None:
        for running in self._running.values():
            running.resume()

    def __getitem__(self, name: str) -> RunningProgram:
        return self._running[name]

    def ended(self) -> list[RunningProgram]:
        """Those that have ended although nobody has stopped them."""
        return [running for running in self._running.values() if not running.is_alive]

    def pids(self) -> list[int]:
        return [running.pid for running in self._running.values()]

    def rss_mib(self) -> dict[str, float]:
        """How much memory each program holds."""
        return {name: running.rss_mib() for name, running in self._running.items()}

    def cpu_s(self) -> dict[str, float]:
        """How much processor time each program has used."""
        return {name: running.cpu_s() for name, running in self._running.items()}

    def _flags(self, name: str) -> list[str]:
        options, access, port = self._options, self.access, self._ports[name]
        match name:
            case "etcd":
                return flags.etcd_flags(options, self._folder, port, self._peer_port)
            case "kube-apiserver":
                return flags.api_server_flags(options, access, self._ports["etcd"], self.audit_log)
            case "kube-controller-manager":
                return flags.controller_flags(options, access, port)
            case "kube-scheduler":
                return flags.scheduler_flags(options, access, port)
            case "kwok":
                return flags.kwok_flags(options, access.kubeconfig("kwok", [ADMINS]), port)
        raise KeyError(name)

    def _health_url(self, name: str) -> str:
        port = self._ports[name]
        match name:
            case "kube-apiserver":
                return f"{self.access.url}/readyz"
            case "kube-controller-manager" | "kube-scheduler":
                return f"https://{LOOPBACK}:{port}/healthz"
            case "etcd":
                return f"http://{LOOPBACK}:{port}/health"
        return f"http://{LOOPBACK}:{port}/healthz"

    def _wait_ready(self, name: str) -> None:
        running, url = self._running[name], self._health_url(name)
        give_up = time.monotonic() + READY_WITHIN_S
        while not _says_ok(url):
            running.check()
            if time.monotonic() > give_up:
                raise NotReady(f"{running.name} not ready after {READY_WITHIN_S} s; {running.last_words()}")
            time.sleep(_PAUSE_S)


def program_names(options: Options) -> list[str]:
    """The programs of a control plane, in the order of their start."""
    parts = {
        "etcd": True,
        "kube-apiserver": True,
        "kube-controller-manager": options.controllers,
        "kube-scheduler": options.scheduler,
        "kwok": options.kwok,
    }
    return [name for name, wanted in parts.items() if wanted]


def _says_ok(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5, context=_ANY_SERVER) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError, http.client.HTTPException):
        return False
