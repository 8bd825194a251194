"""What the Philly trace says about jobs, as numbers for the generator.

Source: msr-fiddle/philly-traces (Jeon et al., ATC 2019, CC-BY-4.0) as prepared in petuum/adaptdl: 82,247 jobs
from 2017-09-04 to 2017-12-22. Counts are exact; the log-normal mixtures were fitted to the logarithms of the
durations by expectation maximisation, three parts for each class of sizes.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

JOBS_BY_GPUS = (
    (1, 76_627),
    (2, 1_818),
    (4, 1_870),
    (8, 1_643),
    (12, 7),
    (16, 199),
    (24, 7),
    (32, 67),
    (64, 6),
    (128, 3),
)

JOBS_BY_HOUR = (
    *(4_367, 3_374, 3_835, 3_780, 2_400, 3_950, 5_732, 7_159, 3_802, 3_447, 3_510, 2_979),
    *(2_567, 2_415, 2_185, 2_224, 3_021, 2_289, 2_744, 2_496, 3_483, 3_142, 3_885, 3_461),
)
"""By the hour of the timestamp, 0–23, in the trace's own clock."""

JOBS_BY_WEEKDAY = (10_136, 12_528, 13_370, 15_114, 16_954, 7_157, 6_988)
"""Monday first."""


class LogNormal(NamedTuple):
    """A part of a mixture."""

    weight: float
    median_s: float
    sigma: float


DURATIONS_FROM_GPUS = (
    (1, (LogNormal(0.187, 65, 0.17), LogNormal(0.214, 2_032, 0.51), LogNormal(0.599, 1_327, 1.96))),
    (2, (LogNormal(0.306, 18, 0.34), LogNormal(0.277, 150, 1.76), LogNormal(0.417, 57_906, 1.34))),
    (8, (LogNormal(0.368, 600, 1.84), LogNormal(0.192, 16_386, 0.74), LogNormal(0.440, 181_880, 0.86))),
)
"""The mixture of the last entry whose GPU count is not above the job's."""
_FROM = [gpus for gpus, _ in DURATIONS_FROM_GPUS]


def duration_mixture(gpus: int) -> tuple[LogNormal, ...]:
    return DURATIONS_FROM_GPUS[bisect_right(_FROM, gpus) - 1][1]
