"""Sharing: whether any way round a limit or at a neighbour is left, also while processes are killed at random.

Every allocation entry point by every way to it (linked, dlsym, cuGetProcAddress of both versions) on a
virtual GPU; then the same by many processes at once that are killed with kill -9 at random points; memory by
heaps, stacks and handles; and a tenant that forges and truncates what it finds, beside one with a hard half of
the card. Bar: no escape, nothing left in the accounts, no neighbour ended or cut. What the threat model names
as not defended is not tried.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TypeAlias

from batuta.gpu.native_libraries import share_probe
from batuta.gpu.share.limits import DeviceLimit
from batuta.gpu.share.region import read_region
from batuta.gpu.vgpu.snapshot import read_gpus
from benchmarks.measure import show
from benchmarks.share_tenants import Node, node
from tests.gpu.share.attacks import FORBIDDEN, HOARDS, PERMITTED, can_confine, forgery, truncatable
from tests.gpu.share.containers import Container, container, kill, limit, said
from tests.support.vgpu import VirtualNode

Row: TypeAlias = tuple[str, object, object]
_ATTACK_S = 2.0
_LIMIT_MIB, _KILLS, _AT_ONCE = 64, 200, 4


def main() -> None:
    with node() as machine:
        env = machine.limited("escapes", DeviceLimit(machine.uuid, _LIMIT_MIB), cards=False)
        calm = _verdicts(machine.run(env, "entries"))
        killed, most_mib = _killed(machine, env)
        after = _verdicts(machine.run(env, "entries"))
        device = read_region(machine.folder / "escapes" / "region").devices[0]
        rows = [
            ("entry points × ways that hold", calm["holds"], sum(calm.values())),
            ("processes killed at random", killed, _KILLS),
            ("most memory in use meanwhile, MiB", most_mib, f"limit {_LIMIT_MIB}"),
            ("entry points × ways that hold afterwards", after["holds"], sum(after.values())),
            ("escapes", calm["escapes"] + after["escapes"] + (most_mib > _LIMIT_MIB), 0),
            ("bytes left in the accounts", device.used_bytes, 0),
            *_hoards(machine),
            *_attacks(machine),
            (
                "deaths with the lock, put right",
                read_region(machine.folder / "escapes" / "region").repairs,
                "",
            ),
        ]
        show("ways round the limit", ("", "found", "of"), rows)


def _hoards(machine: Node) -> Iterator[Row]:
    """Memory that no allocation gives."""
    gpu = VirtualNode(machine.device_file)
    place = container(gpu, limit(gpu, _LIMIT_MIB), name="hoards")
    got = [name for name, code in HOARDS.items() if place.run_python(code).strip() != "0"]
    yield "heaps, stacks and handles beyond the limit", len(got), f"0 of {len(HOARDS)}"


def _attacks(machine: Node) -> Iterator[Row]:
    """What a hostile tenant does to a neighbour that has a hard half of the card."""
    gpu = VirtualNode(machine.device_file)
    victim, attacker = (
        container(gpu, limit(gpu, compute_percent=50), name=name, cards=True) for name in ("victim", "attacker")
    )
    with ExitStack() as running:
        process = victim.load()
        running.callback(kill, process)
        if can_confine():
            forger = gpu.start(forgery(attacker))
            running.callback(kill, forger)
            outcomes = [said(forger) for _ in range(FORBIDDEN + PERMITTED)]
            yield "files of others that a container changed", outcomes[:FORBIDDEN].count("done"), f"0 of {FORBIDDEN}"
            yield "the hard half beside 63 forged tenants, percent", _lowest(victim), 50
        else:
            yield "files of others that a container changed", "needs root", f"0 of {FORBIDDEN}"
        yield "neighbours ended from a container", int(process.poll() is not None), 0
    ended = [what for what in ("card", "demand", "region") if _ends_by_truncation(gpu, what)]
    yield "jobs ended by a truncated file of the same user", len(ended), "0 of 3"


def _lowest(place: Container) -> float:
    lowest, until_s = 100.0, time.monotonic() + _ATTACK_S
    while time.monotonic() < until_s:
        lowest = min(lowest, place.device().rate_percent)
        time.sleep(0.01)
    return lowest


def _ends_by_truncation(gpu: VirtualNode, what: str) -> bool:
    place = container(gpu, limit(gpu, compute_percent=50), name=f"truncated-{what}", cards=True)
    process = place.load()
    os.truncate(truncatable(place)[what], 0)
    time.sleep(_ATTACK_S / 2)
    is_ended = process.poll() is not None
    kill(process)
    return is_ended


def _verdicts(text: str) -> Counter[str]:
    return Counter(line.split("\t")[2] for line in text.splitlines())


def _killed(machine: Node, env: dict[str, str]) -> tuple[int, int]:
    """How many were killed, and the most that the GPU had given at any look."""
    chance = random.Random(8)
    running: list[subprocess.Popen[bytes]] = []
    killed, most = 0, 0
    while killed < _KILLS:
        if len(running) < _AT_ONCE:
            command = [str(share_probe()), "entries"]
            quiet = subprocess.DEVNULL
            running.append(subprocess.Popen(command, env=env, stdout=quiet, stderr=quiet))
        time.sleep(chance.random() * 0.005)
        most = max(most, read_gpus(machine.device_file)[0].used_bytes >> 20)
        victim = running.pop(chance.randrange(len(running)))
        victim.kill()
        victim.wait()
        killed += 1
    for process in running:
        process.kill()
        process.wait()
    return killed, most
