import json
from typing import Any

import numpy as np
import pytest

from batuta.spec.problem import InputError
from batuta.spec.snapshot import read_snapshots

JOB: dict[str, Any] = {
    "id": "a",
    "submit_s": 5,
    "size": 2,
    "min": 1,
    "max": 4,
    "remaining_s": 60,
    "speed": [0, 1, 1.8, 2.5, 3.1],
}


def snapshot(*jobs: Any, **changes: Any) -> dict[str, Any]:
    return {"capacity": {"gpu": 12}, "jobs": list(jobs), **changes}


def complaints(document: Any) -> list[str]:
    text = document if isinstance(document, str) else json.dumps(document)
    with pytest.raises(InputError) as caught:
        read_snapshots(text)
    return [problem.message + (f" ({problem.fix})" if problem.fix else "") for problem in caught.value.problems]


def test_reads_what_the_specification_shows() -> None:
    first = {**JOB, "first_start_s": None, "tier": 0, "sizes": [1, 2, 4]}
    second = {**JOB, "id": "b", "submit_s": 1, "first_start_s": 3.5, "tier": 1}
    found = read_snapshots(json.dumps(snapshot(first, second, now_s=7)))
    (view,) = found.views
    assert not found.is_list
    assert (view.now_s, view.capacity, list(view.ids)) == (7.0, 12, ["b", "a"])
    assert view.tier.tolist() == [1, 0]
    assert view.first_start_s[0] == 3.5
    assert np.isnan(view.first_start_s[1])
    assert view.sizes.of(1).tolist() == [1, 2, 4]
    assert view.sizes.of(0).tolist() == [1, 2, 3, 4]
    assert view.speed.at(np.array([2, 4])).tolist() == [1.8, 3.1]
    assert not view.min.flags.writeable


def test_a_list_of_snapshots() -> None:
    found = read_snapshots(json.dumps([snapshot(JOB), snapshot(capacity={"a100": 0})]))
    assert found.is_list
    assert [(view.capacity, len(view)) for view in found.views] == [(12, 1), (0, 0)]
    assert read_snapshots("[]").views == ()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"min": 5}, "jobs[0].min must be ≤ max, found min 5 and max 4"),
        ({"min": 0}, "jobs[0].min must be a whole number in 1..1000000000, found 0"),
        ({"min": 1.5}, "jobs[0].min must be a whole number in 1..1000000000, found 1.5"),
        ({"min": True}, "jobs[0].min must be a whole number in 1..1000000000, found True"),
        ({"max": 10**30}, f"jobs[0].max must be a whole number in 1..1000000000, found {10**30}"),
        ({"size": 9}, "jobs[0].size must be within min..max, found 9 outside 1..4"),
        ({"sizes": [1, 4, 2]}, "jobs[0].sizes must ascend without repeats, found [1, 4, 2]"),
        ({"sizes": []}, "jobs[0].sizes must ascend without repeats, found []"),
        ({"sizes": [2, 4]}, "jobs[0].sizes must begin at min 1 and end at max 4, found [2, 4]"),
        ({"sizes": [1, 4]}, "jobs[0].size must be one of sizes, found 2 and sizes [1, 4]"),
        ({"sizes": [1, "2"]}, "jobs[0].sizes[1] must be a whole number ≥ 1, found '2'"),
        (
            {"gpus_per_replica": 2},
            "jobs[0].gpus_per_replica must divide size - min and max - min, found 2 for min 1, size 2, max 4",
        ),
        ({"speed": [0, 1, 2]}, "jobs[0].speed must have a value for each of 0..4 GPUs, found 3 values"),
        ({"speed": [1, 1, 2, 3, 4]}, "jobs[0].speed must begin with 0, the speed with 0 GPUs, found 1.0"),
        ({"speed": [0, 1, -2, 3, 4]}, "jobs[0].speed[2] must be a finite number ≥ 0, found -2"),
        ({"speed": "fast"}, "jobs[0].speed must be a list, found 'fast'"),
        ({"remaining_s": float("nan")}, "jobs[0].remaining_s must be a finite number ≥ 0, found nan"),
        ({"remaining_s": float("inf")}, "jobs[0].remaining_s must be a finite number ≥ 0, found inf"),
        ({"submit_s": -1}, "jobs[0].submit_s must be a finite number ≥ 0, found -1"),
        ({"first_start_s": "now"}, "jobs[0].first_start_s must be a finite number ≥ 0, found 'now'"),
        ({"tier": -1}, "jobs[0].tier must be a whole number in 0..1000000000, found -1"),
        ({"id": ""}, "jobs[0].id must be a text that is not empty, found ''"),
        ({"id": 7}, "jobs[0].id must be a text that is not empty, found 7"),
        ({"remaning_s": 1}, "jobs[0].remaning_s is not a known key (did you mean remaining_s?)"),
        ({"priority": "high"}, "jobs[0].priority must be a whole number, found 'high'"),
    ],
)
def test_refuses_a_bad_job(changes: dict[str, Any], complaint: str) -> None:
    assert complaints(snapshot({**JOB, **changes})) == [complaint]


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        (snapshot(JOB, JOB), "jobs[1].id repeats 'a' of jobs[0]"),
        (snapshot(3), "jobs[0] must be an object with the keys of a job"),
        (snapshot(capacity={"gpu": -1}), "capacity.gpu must be a whole number in 0..1000000000, found -1"),
        (snapshot(capacity=3), "capacity must be an object, found 3"),
        (snapshot(jbos=[]), "jbos is not a known key (did you mean jobs?)"),
        (snapshot(now_s=-1), "now_s must be a finite number ≥ 0, found -1"),
        ({"jobs": []}, "capacity is missing (give an object)"),
        ({"capacity": {"gpu": 1}}, "jobs is missing (give a list)"),
        (
            snapshot(capacity={"a100": 4, "v100": 8}),
            "capacity must name one GPU type, found 2: a100, v100 (a policy runs on one type at a time; "
            'write one snapshot per type, or {"gpu": total})',
        ),
        (
            snapshot({**JOB, "gpu_types": ["v100"]}, capacity={"a100": 4}),
            "jobs[0].gpu_types does not accept a100, the type in capacity",
        ),
        ([snapshot(), 5], '[1] must be an object with "capacity" and "jobs"'),
        ('{"capacity": {"gpu": 1}, "jobs": [}', "not valid JSON: Expecting value"),
        ("", "not valid JSON: Expecting value"),
        (
            '{"capacity": {"gpu": 1}, "capacity": {"gpu": 2}, "jobs": []}',
            "key 'capacity' is given more than once in one object",
        ),
        ("[" * 100_000, "not readable as JSON: maximum recursion depth exceeded"),
    ],
)
def test_refuses_a_bad_snapshot(document: Any, complaint: str) -> None:
    (found,) = complaints(document)
    assert found.startswith(complaint)


def test_a_missing_value_is_named() -> None:
    assert complaints(snapshot({})) == [
        "jobs[0].id is missing",
        "jobs[0].submit_s is missing (give a number ≥ 0)",
        "jobs[0].size is missing (give a whole number ≥ 1)",
        "jobs[0].min is missing (give a whole number ≥ 1)",
        "jobs[0].max is missing (give a whole number ≥ 1)",
        "jobs[0].remaining_s is missing (give a number ≥ 0)",
        "jobs[0].speed is missing (give a list)",
    ]


def test_all_problems_at_once_with_their_lines() -> None:
    text = '{"capacity": {"gpu": 1},\n "jobs": [\n  {"id": "a", "submit_s": -1,\n   "min": 3, "max": 2, '
    text += '"size": 1}]}'
    with pytest.raises(InputError) as caught:
        read_snapshots(text, "pool.json")
    assert [str(problem) for problem in caught.value.problems] == [
        "pool.json:3:27: jobs[0].submit_s must be a finite number ≥ 0, found -1",
        "pool.json:3:3: jobs[0].remaining_s is missing (give a number ≥ 0)",
        "pool.json:3:3: jobs[0].speed is missing (give a list)",
        "pool.json:4:11: jobs[0].min must be ≤ max, found min 3 and max 2",
    ]
