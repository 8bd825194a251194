"""How long rent takes to decide on 10,000 jobs for 16,000 GPUs, against elastic-fifo. Bar: three times."""

from __future__ import annotations

import statistics
from functools import partial

from batuta.core.decide import decide
from batuta.engine.profile import profile_for
from benchmarks.clusters import GPUS_PER_NODE, Mix, make_jobs, make_world
from benchmarks.decide_scale import one_change
from benchmarks.measure import in_turns_cpu_s, ratio_of, show, times

JOBS, NODES, BAR = 10_000, 2_000, 3.0
POLICIES = ("elastic-fifo", "rent")


def main() -> None:
    rows = []
    for mix in Mix:
        world = make_world(make_jobs(JOBS, mix), NODES)
        rules = [profile_for(policy) for policy in POLICIES]
        changed = [one_change(world.fork(), float(JOBS), own) for own in rules]
        full = in_turns_cpu_s([partial(decide, world, float(JOBS), own) for own in rules])
        after = in_turns_cpu_s([partial(decide, *case, own) for case, own in zip(changed, rules, strict=True)])
        rows.append(
            (
                mix.value,
                *(f"{statistics.median(spent) * 1e3:.0f}" for spent in full),
                times(ratio_of(full[1], full[0]), BAR),
                *(f"{statistics.median(spent) * 1e3:.1f}" for spent in after),
            )
        )
    columns = (
        "mix",
        *(f"{policy} (ms)" for policy in POLICIES),
        "ratio",
        *(f"1: {p} (ms)" for p in POLICIES),
    )
    title = f"A full cycle for {JOBS:,} jobs and {NODES * GPUS_PER_NODE:,} GPUs; `1:` after one change"
    show(title, columns, rows)


if __name__ == "__main__":
    main()
