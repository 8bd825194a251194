"""Repair GPUs without a human: resets where they are safe, and burn-ins in a process of their own."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, TypeAlias

from batuta.core.cluster import NodeName
from batuta.core.health import HealthStateMachine
from batuta.core.health_record import WHOLE_NODE, BurnIn, Mend, Order, Target
from batuta.core.health_rules import Action
from batuta.gpu.health.nvml_source import NvmlHealthSource
from batuta.gpu.local_nodes import VirtualGpus
from batuta.gpu.vgpu.inject import reset
from batuta.spec.problem import InputError

WITHIN_S: Final = 900
_KILL_AFTER_S: Final = 30.0
"""After its own limit it is killed: a driver that hangs lets no signal through to its program."""
_MAX_DETAIL_CHARS: Final = 500
_BURN_S, _VIRTUAL_BURN_S = 60.0, 0.2  # of computing in a burn-in: heat takes a while, and a virtual GPU has none
_log = logging.getLogger(__name__)


class BurnInRun:
    """One run of `batuta.gpu.health.burn_in` in a process of its own. No method blocks on it."""

    def __init__(self, gpus: Sequence[str], env: Mapping[str, str], seconds: float, within_s: int = WITHIN_S) -> None:
        options = [word for gpu in gpus for word in ("--gpu", gpu)]
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._give_up_s = time.monotonic() + within_s + _KILL_AFTER_S
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "batuta.gpu.health.burn_in", *options),
                *("--seconds", f"{seconds:g}", "--within", str(within_s)),
            ],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def poll(self) -> tuple[bool, str] | None:
        """Return whether it passed, with details; None while it runs."""
        code = self._process.poll()
        if code is None:
            if time.monotonic() < self._give_up_s:
                return None
            self.close()
            return False, "it hangs: it could not even be ended in time"
        self._out.seek(0)
        text = self._out.read().decode(errors="replace").strip()
        self._out.close()
        try:
            outcome = json.loads(text.splitlines()[-1])
            return bool(outcome["passed"]) and code == 0, str(outcome["detail"])[:_MAX_DETAIL_CHARS]
        except (IndexError, ValueError, KeyError, TypeError):
            last = text.splitlines()[-1][:_MAX_DETAIL_CHARS] if text else "it printed nothing"
            return False, f"it ended with code {code}: {last}"

    def close(self) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5.0)
        self._out.close()


class RepairBackend(Protocol):
    """The GPUs as the repair worker reaches them, real or virtual."""

    def in_use(self, target: Target) -> bool:
        """Return whether processes are on it."""
        ...

    def reset(self, target: Target) -> bool:
        """Reset it if that can be done from here; return whether it was."""
        ...

    def burn_in(self, target: Target) -> BurnInRun | None:
        """Start a burn-in of a GPU or of all GPUs of a node; None: not possible now."""
        ...


class VirtualGpuRepair:
    """Virtual GPUs: a reset is done at once, whatever else has to be done is for people."""

    def __init__(self, virtual: VirtualGpus) -> None:
        self._virtual = virtual

    def _gpus(self, target: Target) -> Sequence[int]:
        count = len(self._virtual.uuids(target.node))
        return range(count) if target.gpu == WHOLE_NODE else (target.gpu,)

    def in_use(self, target: Target) -> bool:
        return any(gpu.processes for gpu in self._virtual.read(target.node) if gpu.index in self._gpus(target))

    def reset(self, target: Target) -> bool:
        path = self._virtual.path(target.node)
        with suppress(InputError):  # the file was removed
            if path is not None:
                for gpu in self._gpus(target):
                    reset(path, gpu)
                return True
        return False

    def burn_in(self, target: Target) -> BurnInRun | None:
        if not self._virtual.has_libraries:
            return None  # they are being compiled, or cannot be: then no program sees the GPUs
        env = self._virtual.environment(target.node, os.environ)
        return BurnInRun([str(gpu) for gpu in self._gpus(target)], env, _VIRTUAL_BURN_S)


class PhysicalGpuRepair:
    """The GPUs of this machine. A reset needs rights that a server should not have: people do it."""

    def __init__(self, figures: NvmlHealthSource | None, uuids: Mapping[NodeName, Sequence[str]]) -> None:
        self._figures, self._uuids = figures, uuids

    def _gpus(self, target: Target) -> Sequence[str]:
        own = self._uuids[target.node]
        return own if target.gpu == WHOLE_NODE else own[target.gpu : target.gpu + 1]

    def in_use(self, target: Target) -> bool:
        figures = self._figures
        return figures is not None and any(figures.in_use(uuid) for uuid in self._gpus(target))

    def reset(self, target: Target) -> bool:
        return False

    def burn_in(self, target: Target) -> BurnInRun | None:
        return BurnInRun(self._gpus(target), os.environ, _BURN_S)


RepairResult: TypeAlias = Callable[[HealthStateMachine, float], object]
"""Puts what was done into the state machine, at a time."""


class RepairWorker:
    """Carries out repair orders. One burn-in at a time: it heats, and it takes the machine's cores."""

    def __init__(self, backend: RepairBackend) -> None:
        self._backend = backend
        self._run: tuple[Target, BurnInRun] | None = None

    def work(self, orders: Sequence[Order]) -> list[RepairResult]:
        """Carry out orders as far as possible now; return what was done since the last call.

        The caller holds no lock: a faulty GPU may take minutes to answer.
        """
        done = self._poll_run(orders)
        for order in orders:
            if isinstance(order, Mend) and order.remedy is Action.RESET_GPU:
                if not self._backend.in_use(order.target) and self._backend.reset(order.target):
                    done.append(partial(_mended, order.target))
            elif isinstance(order, BurnIn) and self._run is None and not self._backend.in_use(order.target):
                run = self._backend.burn_in(order.target)
                self._run = (order.target, run) if run is not None else None
        return done

    def _poll_run(self, orders: Sequence[Order]) -> list[RepairResult]:
        if self._run is None:
            return []
        target, run = self._run
        if BurnIn(target) not in orders:
            run.close()  # it failed again meanwhile, or a user has decided
            self._run = None
            return []
        outcome = run.poll()
        if outcome is None:
            return []
        self._run = None
        passed, detail = outcome
        _log.info("burn-in of %s %s: %s", target, "passed" if passed else "failed", detail)
        return [lambda machine, now_s: machine.burnt_in(target, passed, detail, now_s)]

    def close(self) -> None:
        """End the burn-in that is under way: it starts anew at the next start."""
        if self._run is not None:
            self._run[1].close()
            self._run = None


def _mended(target: Target, machine: HealthStateMachine, now_s: float) -> None:
    machine.mended(target, now_s)
