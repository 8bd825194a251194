"""How busy GPUs are, as the binder believes it: fresh reports count, old ones and gaps do not."""

import json
import math

import numpy as np
import pytest

from batuta.backends.kube import names
from batuta.backends.kube.binder.cluster import expected_load
from batuta.backends.kube.binder.gpu_table import STALE_S, UNKNOWN, GpuUsage

TIME_S = 100_000.0


def reported(*gpus: dict[str, float], time_s: float = TIME_S) -> GpuUsage:
    usage = GpuUsage()
    usage.resize(1)
    usage.put(0, json.dumps({"time": time_s, "gpus": list(gpus)}))
    usage.tick(TIME_S)
    return usage


def believed(usage: GpuUsage) -> list[float]:
    return usage.believed(np.array([0]), 2)[0].tolist()


def test_a_fresh_report_is_believed():
    usage = reported({"index": 0, "utilisation": 0.9}, {"index": 1, "utilisation": 0.0})
    assert believed(usage) == pytest.approx([0.9, 0.0])
    assert usage.busy(np.array([0]), 2)[0].tolist() == [0.9, 0.0]


def test_a_gpu_that_cannot_tell_is_unknown_and_not_idle():
    """Given a GPU that fell off the bus, then nobody is sent to it because it seems to be idle."""
    usage = reported({"index": 0}, {"index": 1, "utilisation": 0.2})
    assert believed(usage) == pytest.approx([UNKNOWN, 0.2])
    assert math.isnan(usage.busy(np.array([0]), 2)[0, 0])


def test_an_old_report_says_nothing():
    usage = reported({"index": 0, "utilisation": 1.0})
    usage.tick(TIME_S + STALE_S + 10)
    assert believed(usage) == [UNKNOWN, UNKNOWN]


def test_a_report_from_the_future_says_nothing():
    assert believed(reported({"index": 0, "utilisation": 1.0}, time_s=TIME_S + 1000)) == [UNKNOWN, UNKNOWN]


@pytest.mark.parametrize(
    ("text", "load"), [("0.4", 0.4), ("7", 1.0), ("-1", 0.0), ("nan", None), ("inf", None), ("much", None)]
)
def test_what_a_pod_is_expected_to_use_is_read_from_it(text: str, load: float | None):
    assert expected_load({names.EXPECTED_UTILISATION: text}) == load
    assert expected_load({}) is None
