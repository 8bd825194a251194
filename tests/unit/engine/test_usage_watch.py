"""How busy GPUs are is told when it has changed, seldom, and before it grows stale."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from batuta.core.event import GpusUsed
from batuta.core.job import Share
from batuta.core.utilisation import STALE_S
from batuta.engine.usage_watch import LOOK_S, REFRESH_S, TELL_S, NodeUse, UsageWatch
from tests.support.worlds import make_job, make_nodes, make_world


@dataclass
class Machine:
    """GPUs that are as busy as the test says, and a clock."""

    use: Mapping[str, NodeUse] = field(default_factory=dict)
    now_s: float = 1000.0
    step_s: float = 0.01

    def sample(self) -> None:
        pass

    def look(self) -> Mapping[str, NodeUse]:
        return self.use


def watch_of(machine: Machine) -> UsageWatch:
    return UsageWatch(machine, lambda make: None, clock=lambda: machine.now_s)


def told(*gpus: float | None, watch: UsageWatch, machine: Machine, after_s: float) -> bool:
    machine.now_s += after_s
    machine.use = {"n0": NodeUse(gpus)}
    return bool(watch.look())


def test_the_first_look_is_told():
    machine = Machine({"n0": NodeUse((0.5, None))})
    assert watch_of(machine).look() == [GpusUsed(1000.0, "n0", (0.5, None))]


@pytest.mark.parametrize(
    ("why", "gpus", "after_s", "is_told"),
    [
        ("nothing has changed", (0.5, 0.0), TELL_S, False),
        ("hardly anything has", (0.59, 0.01), TELL_S, False),
        ("much has", (0.7, 0.0), TELL_S, True),
        ("a GPU is used that was not", (0.5, 0.05), TELL_S, True),
        ("one can no longer be measured", (0.5, None), TELL_S, True),
        ("much has, but a moment ago", (0.9, 0.0), TELL_S - 1, False),
        ("nothing has for long", (0.5, 0.0), REFRESH_S, True),
        ("the node has another GPU", (0.5, 0.0, 0.0), 0.0, True),
    ],
)
def test_told_or_not_when(why: str, gpus: Sequence[float | None], after_s: float, is_told: bool):
    machine = Machine({"n0": NodeUse((0.5, 0.0))})
    watch = watch_of(machine)
    watch.look()
    assert told(*gpus, watch=watch, machine=machine, after_s=after_s) is is_told


def test_what_creeps_is_told_in_the_end():
    # Each look is compared with what was told, not with the look before.
    machine = Machine({"n0": NodeUse((0.1,))})
    watch = watch_of(machine)
    watch.look()
    looks = [told(0.1 + 0.06 * n, watch=watch, machine=machine, after_s=TELL_S) for n in (1, 2)]
    assert looks == [False, True]


def test_what_is_told_does_not_grow_stale_before_it_is_told_again():
    assert REFRESH_S + LOOK_S < STALE_S


def test_people_see_the_last_look():
    machine = Machine({"n0": NodeUse((0.5, None, 0.0))})
    watch = watch_of(machine)
    watch.look()
    assert watch.latest("n0") == {0: 0.5, 2: 0.0}
    assert watch.latest("elsewhere") == {}


def test_sharers_of_a_card_are_told_apart():
    # given two jobs on one card, of which one uses it, and one that has a card alone
    jobs = [
        make_job("busy", share=Share(compute_percent=50)),
        make_job("idle", share=Share(compute_percent=50)),
        make_job("whole"),
    ]
    world = make_world(make_nodes(2), {"busy": "n0:0", "idle": "n0:0", "whole": "n0:1"}, jobs)
    asked: list[Sequence[GpusUsed]] = []
    machine = Machine({"n0": NodeUse((0.5, 0.3), {"busy": 0.5, "whole": 0.3}, knows_all_jobs=True)})
    watch = UsageWatch(machine, lambda make: asked.append(make(world)), clock=lambda: machine.now_s)
    # when that is told
    watch.tell()
    # then of these two it is said what each had
    assert [event.jobs for event in asked[0]] == [(("busy", 0.5), ("idle", 0.0))]
