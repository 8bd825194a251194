from typing import Any

import pytest

from batuta.policies.tiresias import Tiresias
from tests.support.views import make_view

NOW_S = 10_000.0


@pytest.mark.parametrize(
    ("job", "tier"),
    [
        pytest.param({"tier": 0, "gpus": 1, "service_gpu_s": 3600}, 0, id="just used up its share"),
        pytest.param({"tier": 0, "gpus": 1, "service_gpu_s": 3601}, 1, id="used more than its share"),
        pytest.param({"tier": 1, "gpus": 1, "service_gpu_s": 9e9}, 1, id="the lowest tier has no end"),
        pytest.param({"tier": 0, "gpus": 0, "service_gpu_s": 9e9}, 0, id="a waiting job is not demoted"),
        pytest.param(
            {"tier": 1, "gpus": 0, "last_start_s": 1000, "last_stop_s": 2000},
            0,
            id="waited 8 times as long as it ran",
        ),
        pytest.param({"tier": 1, "gpus": 0, "last_start_s": 999, "last_stop_s": 2000}, 1, id="not yet 8 times as long"),
        pytest.param(
            {"tier": 1, "gpus": 2, "last_start_s": 1000, "last_stop_s": 2000},
            1,
            id="it runs, so it does not wait",
        ),
        pytest.param({"tier": 1, "gpus": 0}, 1, id="never ran"),
    ],
)
def test_moves_between_tiers(job: dict[str, Any], tier: int) -> None:
    view = make_view(4, [{"id": "a", "size": 2, **job}], NOW_S)
    assert Tiresias().tiers(view).tolist() == [tier]


def test_more_tiers_have_more_thresholds() -> None:
    policy = Tiresias(thresholds_gpu_s=(100.0, 1000.0))
    jobs = [{"id": f"j{k}", "gpus": 1, "tier": k, "service_gpu_s": 500} for k in range(3)]
    assert policy.tiers(make_view(4, jobs)).tolist() == [1, 1, 2]


def test_promotion_is_a_parameter() -> None:
    job = {"id": "a", "tier": 1, "last_start_s": 0, "last_stop_s": 5000}
    assert Tiresias(promote_after=1.0).tiers(make_view(4, [job], NOW_S)).tolist() == [0]
    assert Tiresias(promote_after=1.1).tiers(make_view(4, [job], NOW_S)).tolist() == [1]
