"""Sharing: what the library adds to a launch, and to allocations when many are live.

CPU time of the same program with and without the library, in turns, on a virtual GPU. Bars: a launch through
the library at most 5 × the bare one; alloc and free with 20,000 live allocations at most 1.3 × that with 10.
"""

from __future__ import annotations

import statistics

from batuta.gpu.share.limits import DeviceLimit
from benchmarks.measure import ratio_of, show, times
from benchmarks.share_tenants import Node, node

LAUNCH_BAR, LIVE_BAR = 5.0, 1.3
_REPEAT, _LAUNCHES, _ALLOCATIONS, _FEW, _MANY = 7, 50_000, 20_000, 10, 20_000


def main() -> None:
    with node() as machine:
        _show_launches(machine)
        _show_allocations(machine)


def _show_launches(machine: Node) -> None:
    uuid = machine.uuid
    places = {
        "bare": machine.bare(),
        "memory limit only": machine.limited("memory", DeviceLimit(uuid, 1000), cards=False),
        "hard limit of 90 %": machine.limited("hard", DeviceLimit(uuid, 1000, 90), cards=False),
        "soft limit, beside others": machine.limited("soft", DeviceLimit(uuid, 1000, None, 30)),
    }
    taken: dict[str, list[float]] = {name: [] for name in places}
    for _ in range(_REPEAT):
        for name, env in places.items():
            taken[name].append(float(machine.run(env, "speed", "launch", _LAUNCHES, 0)))
    rows = [
        (name, f"{statistics.median(found):.0f} ns", times(ratio_of(found, taken["bare"]), LAUNCH_BAR))
        for name, found in taken.items()
    ]
    show(f"a launch (bar: {LAUNCH_BAR:.0f} × bare)", ("", "CPU time", "ratio"), rows)


def _show_allocations(machine: Node) -> None:
    places = {
        "bare": machine.bare(),
        "limited": machine.limited("allocations", DeviceLimit(machine.uuid, 1000), cards=False),
    }
    rows = []
    for what, words in (("alloc", "the newest freed"), ("alloc-any", "any freed")):
        for name, env in places.items():
            found: dict[int, list[float]] = {_FEW: [], _MANY: []}
            for _ in range(_REPEAT):
                for live, taken in found.items():
                    taken.append(float(machine.run(env, "speed", what, _ALLOCATIONS, live)))
            cost = {live: statistics.median(taken) for live, taken in found.items()}
            ratio = times(ratio_of(found[_MANY], found[_FEW]), LIVE_BAR if name == "limited" else None)
            rows.append((f"{name}, {words}", f"{cost[_FEW]:.0f} ns", f"{cost[_MANY]:.0f} ns", ratio))
    columns = ("", f"{_FEW} live", f"{_MANY:,} live", "ratio")
    note = "bare: what the virtual GPU itself takes more when many are live"
    show(f"alloc and free (bar: {LIVE_BAR} × with few)", columns, rows, [note])
