"""Sharing: how exactly containers on one virtual GPU get the share of its time that they were given.

What they get is what the virtual GPU itself has counted for them. It runs one kernel at a time, in the order
of launches; a real GPU does not, so these figures say how exact the limiter is, not what a real device does.
Bar: 3 points for hard limits, weights and soft limits alike; a soft limit is taken back within a second.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from benchmarks.measure import show
from benchmarks.share_tenants import Load, node

BAR_POINTS, TAKEN_BACK_BAR_S = 3.0, 1.0
UNIFORM, MIXED, SHORT, LONG = "250", "20,100,400,2000", "20", "5000"
_WARM_S, _LENGTH_S = 1.0, 4.0


def main() -> None:
    with node() as machine:
        rows = []
        for share in (30, 50, 70):
            for name, lengths in (("uniform", UNIFORM), ("mixed", MIXED), ("short", SHORT)):
                got = machine.shares([Load(lengths, hard=share)], _WARM_S, _LENGTH_S)
                rows.append((f"{share} %, {name}", *_row([share], got)))
        changing = machine.shares([Load(MIXED, hard=50, how="changing")], _WARM_S, _LENGTH_S)
        rows.append(("50 %, mixed, no size twice", *_row([50], changing)))
        pairs: tuple[tuple[str, list[Load], list[int]], ...] = (
            ("30 % and 70 %, uniform", [Load(UNIFORM, hard=30), Load(UNIFORM, hard=70)], [30, 70]),
            ("50 % and 50 %, short beside long", [Load(SHORT, hard=50), Load(LONG, hard=50)], [50, 50]),
            ("30 % and 50 %, mixed", [Load(MIXED, hard=30), Load(MIXED, hard=50)], [30, 50]),
            ("by weight 1 : 1, short beside long", [Load(SHORT), Load(LONG)], [50, 50]),
            ("by weight 3 : 1", [Load(UNIFORM, weight=300), Load(UNIFORM)], [75, 25]),
            ("30 % hard, the rest by weight", [Load(UNIFORM, hard=30), Load(MIXED)], [30, 70]),
            ("soft 30 % beside soft 70 %", [Load(UNIFORM, soft=30), Load(UNIFORM, soft=70)], [30, 70]),
            ("soft 30 % alone", [Load(UNIFORM, soft=30)], [100]),
            ("soft 30 %, hard 60 %, alone", [Load(UNIFORM, soft=30, hard=60)], [60]),
        )
        for name, loads, wanted in pairs:
            rows.append((name, *_row(wanted, machine.shares(loads, _WARM_S, _LENGTH_S))))
        show("share of device time, in percent", ("containers", "given", "got", "error"), rows)
    _show_taken_back()


def _row(wanted: list[int], got: list[float]) -> tuple[str, str, str]:
    error = max(abs(one - other) for one, other in zip(wanted, got, strict=True))
    mark = " !" if error > BAR_POINTS else ""
    return " ".join(map(str, wanted)), " ".join(f"{one:.1f}" for one in got), f"{error:.1f}{mark}"


def _show_taken_back() -> None:
    """Two containers with soft limits of 30 % and 70 %: the second comes when the first has all."""
    rows = []
    for number in range(3):
        with node() as machine, ExitStack() as running:
            first = running.enter_context(machine.tenant("first", Load(UNIFORM, soft=30)))
            time.sleep(1.0)
            alone = machine.observed([first], 0.5)[0]
            second = running.enter_context(machine.tenant("second", Load(UNIFORM, soft=70)))
            begun_s = time.monotonic()
            took_s = 0.0
            while took_s < 10 * TAKEN_BACK_BAR_S:
                share = machine.observed([first, second], 0.1)
                took_s = time.monotonic() - begun_s
                if abs(share[0] - 30) <= 5 and abs(share[1] - 70) <= 5:
                    break
            mark = " !" if took_s > TAKEN_BACK_BAR_S else ""
            rows.append((f"run {number + 1}", f"{alone:.1f} %", f"{took_s:.2f} s{mark}"))
    show("a soft limit of 30 % is taken back", ("", "before", "both at their limits after"), rows)
