"""kill -9 of a server whose machine fails around it; `python -m benchmarks kill_storm` does 200."""

import os
import sys
from pathlib import Path

import pytest

from tests.support.kill_storm import run_storm
from tests.support.machine_faults import CLOCK, DESCRIPTORS, DISK

KILLS, SEED = 16, int(os.environ.get("BATUTA_SEED") or 20)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local mode is complete on Linux only"),
]


def test_nothing_is_lost_doubled_or_left_over_when_the_machine_fails_too(tmp_path: Path) -> None:
    storm = run_storm(SEED, KILLS, tmp_path, within_s=300)
    assert not storm.wrong, storm.report
    assert storm.faults == {DESCRIPTORS: KILLS // 2, DISK: KILLS // 3, CLOCK: KILLS // 5}
    assert sum(storm.ended.values()) == storm.jobs > KILLS
