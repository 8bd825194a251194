"""Runs the benchmarks: python -m benchmarks [NAME…]; without a name all of them, with --list their names."""

from __future__ import annotations

import importlib
import platform
import sys
import time
from types import ModuleType

from benchmarks.measure import DataMissing

NAMES = (
    "startup",
    "policies_scale",
    "decide_scale",
    "shares_scale",
    "quota_scale",
    "pollux_replay",
    "philly_events",
    "local_latency",
    "duration_calibration",
    "curve_fits",
    "rent_scale",
)
"""Run when no name is given. Each is a module with a `main()` and a docstring that says what it measures."""
ON_REQUEST = (
    "store",
    "store_kinds",
    "api_latency",
    "api_load",
    "kube_client",
    "binder_scale",
    "micro.placement",
    "fractional_packing",
    "published_policies",
    "eta_calibration",
    "foresight_latency",
    "rent_replay",
    "rent_tails",
    "rent_traces",
    "share_calls",
    "share_escapes",
    "share_accuracy",
    "profiler_overhead",
    "telemetry_cost",
    "operator_retention",
    "kill_storm",
    "beside_hogs",
)
"""Run only by name: they take long, or look at one part more closely."""


def main(arguments: list[str]) -> int:
    known = (*NAMES, *ON_REQUEST)
    if "--list" in arguments or "--help" in arguments:
        for name in known:
            print(f"{name:<16} {_promise(importlib.import_module(f'benchmarks.{name}'))}")
        return 0
    unknown = [name for name in arguments if name not in known]
    if unknown:
        print(f"unknown benchmark: {', '.join(unknown)} (known: {', '.join(known)})", file=sys.stderr)
        return 2
    print(f"Python {platform.python_version()}, {platform.machine()}; CPU time of one process, medians.")
    print("Ratios are against a reference in the same run; `!` marks one that misses its bar.")
    for name in arguments or NAMES:
        run(name)
    return 0


def run(name: str) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    print(f"\n=== {name}: {_promise(module)}")
    begun_s = time.perf_counter()
    try:
        module.main()
    except DataMissing as missing:
        print(f"  skipped: {missing}")
    print(f"  ({time.perf_counter() - begun_s:.0f} s)", flush=True)


def _promise(module: ModuleType) -> str:
    return (module.__doc__ or "").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
