"""Sharing: whether any way round a memory limit is left, also while processes are killed at random.

Every allocation entry point by every way to it (linked, dlsym, cuGetProcAddress of both versions) on a
virtual GPU; then the same by many processes at once that are killed with kill -9 at random points. Bar: no
escape, and nothing left in the accounts.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter

from batuta.gpu.native_libraries import share_probe
from batuta.gpu.share.limits import DeviceLimit
from batuta.gpu.share.region import read_region
from batuta.gpu.vgpu.snapshot import read_gpus
from benchmarks.measure import show
from benchmarks.share_tenants import Node, node

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
            (
                "deaths with the lock, put right",
                read_region(machine.folder / "escapes" / "region").repairs,
                "",
            ),
        ]
        show("ways round the limit", ("", "found", "of"), rows)


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
