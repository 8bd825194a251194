"""Only the policies: one call of `allocate` on 10,000 jobs, against elastic-fifo.

The view is made once; what is measured is the answer to "how many GPUs should each job have now?".
"""

from __future__ import annotations

from batuta.core.world import World
from batuta.core.world_view import pool_view
from batuta.policies.registry import load_policy, policy_names
from benchmarks.clusters import GPUS_PER_NODE, Mix, make_jobs, make_world
from benchmarks.measure import median_cpu_s, show, times

SCALES = ((1_000, 200), (10_000, 2_000))
REFERENCE = "elastic-fifo"


def policy_cpu_s(world: World, name: str) -> float:
    policy = load_policy(name)
    view = pool_view(world, float(world.jobs.n), None, sum(world.capacity()), None)
    return median_cpu_s(lambda: policy.allocate(view))


def main() -> None:
    for mix in Mix:
        (small, _), (large, nodes) = SCALES
        spent = {}
        for jobs, count in SCALES:
            world = make_world(make_jobs(jobs, mix), count)
            for name in policy_names():
                spent[name, jobs] = policy_cpu_s(world, name)
        rows = [
            (
                name,
                f"{spent[name, small] * 1e6:,.0f}",
                f"{spent[name, large] * 1e6:,.0f}",
                times(spent[name, large] / spent[name, small]),
                times(spent[name, large] / spent[REFERENCE, large]),
            )
            for name in policy_names()
        ]
        columns = ("policy", f"{small:,} jobs (µs)", f"{large:,} jobs (µs)", "growth", f"to {REFERENCE}")
        show(f"{mix.value}: {large:,} jobs for {nodes * GPUS_PER_NODE:,} GPUs", columns, rows)


if __name__ == "__main__":
    main()
