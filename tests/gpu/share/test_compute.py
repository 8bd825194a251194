"""Device time: what containers on a card may have at each moment. How exactly they get it is benchmarked."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from batuta.gpu.native_libraries import share_probe
from tests.gpu.share.containers import Container, container, eventually, kill, limit
from tests.support.vgpu import VirtualNode


@pytest.fixture
def running() -> Iterator[ExitStack]:
    """Loads that are ended with the test."""
    with ExitStack() as stack:
        yield stack


def start(running: ExitStack, place: Container, lengths_us: str = "250") -> None:
    running.callback(kill, place.load(lengths_us))


def rates(*places: Container) -> tuple[int, ...]:
    return tuple(round(place.device().rate_percent) for place in places)


def test_a_hard_limit_is_what_a_container_has(node: VirtualNode, running: ExitStack):
    place = container(node, limit(node, compute_percent=30))
    start(running, place)
    # when it has launched for a while, then it has waited, and was charged no less than its kernels took
    eventually(lambda: place.device().charged_s > 0.1)
    device = place.device()
    assert device.rate_percent == 30
    assert device.waited_s > 0
    first_launches = 8  # which are charged when their cost is known
    assert device.charged_s > 0.95 * (device.launches - first_launches) * 250e-6


def test_without_any_limit_launches_are_counted_and_nothing_waits(node: VirtualNode):
    place = container(node, limit(node, 100))
    done = place.run([share_probe(), "load", "0.1", "50", "queued"])
    assert done.returncode == 0, done.stderr
    device = place.device()
    assert device.launches == int(done.stdout.splitlines()[-1].split()[0])
    assert (device.charged_s, device.waited_s) == (0, 0)


def test_a_soft_limit_is_exceeded_while_the_card_is_idle_and_taken_back(node: VirtualNode, running: ExitStack):
    # given a container with a soft limit, alone on the card
    first = container(node, limit(node, soft_compute_percent=30), name="first", cards=True)
    second = container(node, limit(node, soft_compute_percent=70), name="second", cards=True)
    start(running, first)
    eventually(lambda: rates(first) == (100,))
    # when the other one comes, then each has what it was promised
    neighbour = second.load()
    eventually(lambda: rates(first, second) == (30, 70))
    # and when it is gone, then the first has all again
    kill(neighbour)
    eventually(lambda: rates(first) == (100,))


def test_a_hard_limit_holds_on_an_idle_card_too(node: VirtualNode, running: ExitStack):
    place = container(node, limit(node, soft_compute_percent=30, compute_percent=60), cards=True)
    start(running, place)
    eventually(lambda: place.device().launches > 200)
    assert rates(place) == (60,)


def test_containers_without_a_limit_share_by_weight(node: VirtualNode, running: ExitStack):
    heavy = container(node, limit(node, weight=300), name="heavy", cards=True)
    light = container(node, limit(node, weight=100), name="light", cards=True)
    start(running, heavy)
    start(running, light)
    eventually(lambda: rates(heavy, light) == (75, 25))


def test_what_a_fixed_limit_leaves_goes_to_the_others_by_weight(node: VirtualNode, running: ExitStack):
    fixed = container(node, limit(node, compute_percent=40), name="fixed", cards=True)
    others = [container(node, limit(node), name=name, cards=True) for name in ("one", "two")]
    for place in (fixed, *others):
        start(running, place)
    eventually(lambda: rates(fixed, *others) == (40, 30, 30))


@pytest.mark.parametrize("kind", ["compute_percent", "soft_compute_percent"])
def test_more_promises_than_there_is_are_cut_in_the_same_ratio(node: VirtualNode, running: ExitStack, kind: str):
    places = [container(node, limit(node, **{kind: percent}), name=str(percent), cards=True) for percent in (90, 60)]
    for place in places:
        start(running, place)
    eventually(lambda: rates(*places) == (60, 40))


def test_what_soft_limits_were_promised_too_much_is_not_taken_from_hard_ones(node: VirtualNode, running: ExitStack):
    # given a card of which 190 percent were promised, 40 of them by a hard limit
    hard = container(node, limit(node, compute_percent=40), name="hard", cards=True)
    soft = [
        container(node, limit(node, soft_compute_percent=percent), name=str(percent), cards=True)
        for percent in (100, 50)
    ]
    # when all want it, then the hard one has what it was promised, and the others share the rest as promised
    for place in (hard, *soft):
        start(running, place)
    eventually(lambda: rates(hard, *soft) == (40, 40, 20))


def test_one_that_wants_little_leaves_the_rest_to_others(node: VirtualNode, running: ExitStack):
    # given a container that was promised half of the card and uses hardly anything of it
    modest = container(node, limit(node, soft_compute_percent=50), name="modest", cards=True)
    greedy = container(node, limit(node, soft_compute_percent=50), name="greedy", cards=True)
    running.callback(kill, modest.load("5", how="waiting"))
    # when another one wants all, then it gets more than its half
    start(running, greedy)
    eventually(lambda: rates(greedy)[0] > 60)


def test_processes_of_a_container_share_its_time(node: VirtualNode, running: ExitStack):
    place = container(node, limit(node, compute_percent=50), cards=True)
    for _ in range(3):
        start(running, place)
    eventually(lambda: place.device().charged_s > 0.1)
    assert rates(place) == (50,)
    assert len(place.device().processes) == 3


def test_a_limit_that_changes_is_heeded_by_what_runs(node: VirtualNode, running: ExitStack):
    place = container(node, limit(node, compute_percent=20))
    start(running, place)
    eventually(lambda: rates(place) == (20,))
    place.allow(limit(node, compute_percent=80))
    eventually(lambda: rates(place) == (80,))


def test_where_nobody_can_tell_whether_a_card_is_idle_a_soft_limit_is_a_hard_one(node: VirtualNode, running: ExitStack):
    place = container(node, limit(node, soft_compute_percent=30), cards=True)
    shutil.rmtree(node.path.parent / "cards")
    start(running, place)
    eventually(lambda: place.device().launches > 200)
    assert rates(place) == (30,)
