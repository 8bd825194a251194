from typing import Any

import pytest

from batuta.policies.tiresias import ElasticTiresias
from tests.support.views import run


def job(name: str, **given: Any) -> dict[str, Any]:
    return {"id": name, "submit_s": int(name[1:]), "tier": 0, "size": 1, "min": 1, "max": 4, **given}


GOOD, POOR, NONE = [0, 1, 1.9, 2.8, 3.6], [0, 1, 1.2, 1.3, 1.35], [0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("capacity", "jobs", "expected"),
    [
        pytest.param(6, [job("j0", speed=POOR), job("j1", speed=GOOD)], {"j0": 2, "j1": 4}, id="most gain first"),
        pytest.param(8, [job("j0", speed=NONE), job("j1", speed=NONE)], {"j0": 1, "j1": 1}, id="no gain, no GPU"),
        pytest.param(
            3,
            [job("j0", speed=GOOD, tier=1, first_start_s=0), job("j1", speed=GOOD, first_start_s=9)],
            {"j0": 1, "j1": 2},
            id="lower tier first on a tie",
        ),
        pytest.param(3, [job("j0", speed=GOOD), job("j1", speed=GOOD)], {"j0": 2, "j1": 1}, id="then the earlier job"),
        pytest.param(
            3,
            [job("j0", speed=POOR), job("j1", size=4, speed=GOOD)],
            {"j0": 1, "j1": 2},
            id="a job whose size did not fit may begin with its minimum",
        ),
        pytest.param(
            5,
            [job("j0", size=3, min=3, speed=GOOD), job("j1", speed=POOR)],
            {"j0": 3, "j1": 2},
            id="min above what is free bars even a running job",
        ),
        pytest.param(
            7,
            [job("j0", size=3, min=3, speed=GOOD), job("j1", speed=[0, 1, 1.95, 2.9, 3.0])],
            {"j0": 4, "j1": 3},
            id="but that is asked only once, before the first step",
        ),
        pytest.param(
            5,
            [job("j0", size=2, sizes=[1, 2, 4], speed=[0, 1, 1.5, 1.5, 4]), job("j1", speed=GOOD)],
            {"j0": 4, "j1": 1},
            id="gain per GPU of a longer step",
        ),
    ],
)
def test_growth(capacity: int, jobs: list[dict[str, Any]], expected: dict[str, int]) -> None:
    assert run(ElasticTiresias(), capacity, jobs) == expected


def test_compaction_makes_room_when_many_wait() -> None:
    big = job("j00", tier=1, size=4, min=1, max=4, first_start_s=0, speed=POOR)
    waiting = [job(f"j{k:02}", tier=1, size=2, min=1, max=2, speed=[0, 1, 1.9]) for k in range(1, 12)]
    with_ten = run(ElasticTiresias(), 4, [big, *waiting[:10]])
    assert with_ten["j00"] == 4
    with_eleven = run(ElasticTiresias(), 4, [big, *waiting])
    assert with_eleven["j00"] == 1
    assert sum(with_eleven.values()) == 4
    assert run(ElasticTiresias(compact_above=11), 4, [big, *waiting])["j00"] == 4
