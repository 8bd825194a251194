"""Burn-in: a GPU proves that it works, before jobs may have it again. Run as a program.

    python -m batuta.gpu.health.burn_in --gpu 0 --seconds 30

`--gpu` is NVML's number or a UUID, and repeatable: several GPUs are tested one after the other, and the ways
between them. One line of JSON tells the outcome; the exit code is 0 when all checks passed and 1 when not.

A virtual GPU keeps what is written to it, in the host's memory, and computes nothing: there only a part of
the memory is filled, results of kernels are not compared, and the outcome says so.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from types import FrameType
from typing import Any

from batuta.gpu.health.burn_in_checks import (
    VIRTUAL_MIB,
    Failed,
    Plan,
    check_compute,
    check_memory,
    check_way,
)
from batuta.gpu.health.burn_in_state import Nvml
from batuta.gpu.health.cuda_driver import Context, Cuda, CudaError


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried."""

    name: str
    passed: bool
    detail: str


def burn_in(gpus: list[str], plan: Plan) -> list[Check]:
    """Tests GPUs; after a check that failed, the rest of that GPU's is not tried."""
    checks: list[Check] = []

    def tried(name: str, check: Callable[[], str]) -> bool:
        try:
            checks.append(Check(name, True, check()))
        except (Failed, CudaError) as problem:
            checks.append(Check(name, False, str(problem)))
        return checks[-1].passed

    opened: list[tuple[str, Context]] = []
    for gpu in gpus:
        context = _burn_in_one(gpu, plan, tried)
        if context is not None:
            opened.append((gpu, context))
    for (gpu, one), (other_gpu, other) in pairwise(opened):
        tried(f"GPU {gpu} to GPU {other_gpu}", partial(check_way, one, other, plan))
    return checks


def _burn_in_one(gpu: str, plan: Plan, tried: Callable[[str, Callable[[], str]], bool]) -> Context | None:
    """The open GPU, for what is tried with it and others; None when it failed."""
    found: list[Any] = []

    def driver() -> str:
        nvml = Nvml()
        handle, uuid = nvml.find(gpu)
        cuda = Cuda()
        found.extend((nvml, handle, cuda.open(cuda.device(uuid)), nvml.uncorrected(handle)))
        return uuid

    if not tried(f"GPU {gpu} driver", driver):
        return None
    nvml, handle, context, before = found

    def state() -> str:
        told: str = nvml.check_state(handle)
        new = nvml.uncorrected(handle) - before
        if new > 0:
            raise Failed(f"{new} uncorrected memory errors during the burn-in")
        return told

    steps = (
        ("memory", lambda: check_memory(context, plan)),
        ("compute", lambda: check_compute(context, plan)),
        ("state", state),
    )
    return context if all(tried(f"GPU {gpu} {name}", check) for name, check in steps) else None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Tests GPUs, and tells the outcome as one line of JSON.")
    parser.add_argument("--gpu", action="append", required=True, metavar="N|UUID", help="which; repeatable")
    parser.add_argument("--seconds", type=float, default=30.0, help="of computing, for each GPU")
    parser.add_argument("--memory-mib", type=int, help="how much memory is written; default: all")
    parser.add_argument("--within", type=int, default=900, metavar="S", help="after so long it has failed")
    given = parser.parse_args(arguments)
    is_virtual = bool(os.environ.get("BATUTA_VGPU"))
    most_mib = given.memory_mib if given.memory_mib is not None else VIRTUAL_MIB if is_virtual else None
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.alarm(given.within)
    try:
        checks = burn_in(given.gpu, Plan(given.seconds, most_mib, is_virtual))
    except TimeoutError:
        checks = [Check("time", False, f"it did not end within {given.within} s")]
    failed = [check for check in checks if not check.passed]
    outcome = {
        "passed": not failed,
        "detail": "; ".join(f"{check.name}: {check.detail}" for check in failed or checks),
        "virtual": is_virtual,
        "checks": [asdict(check) for check in checks],
    }
    sys.stdout.write(json.dumps(outcome) + "\n")
    sys.stdout.flush()
    return 1 if failed else 0


def _out_of_time(number: int, frame: FrameType | None) -> None:
    raise TimeoutError


if __name__ == "__main__":
    sys.exit(main())
