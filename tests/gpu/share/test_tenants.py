"""A tenant of a card that attacks its neighbours hurts itself alone."""

import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from batuta.gpu.share.cards import MAX_TENANTS, CardFolder, Demand, demand_paths, tenant_key
from batuta.gpu.share.limits import DeviceLimit, ShareLimits
from batuta.gpu.share.region import read_region
from batuta.spec.problem import InputError
from tests.gpu.share.attacks import FORBIDDEN, PERMITTED, can_confine, forgery, truncatable
from tests.gpu.share.containers import DRIVER, OUT_OF_MEMORY, Container, container, eventually, kill, limit, said
from tests.support.vgpu import VirtualNode

NOBODY = 65534


@pytest.fixture
def running() -> Iterator[ExitStack]:
    """Processes that are ended with the test."""
    with ExitStack() as stack:
        yield stack


def load(running: ExitStack, place: Container) -> "subprocess.Popen[str]":
    process = place.load()
    running.callback(kill, process)
    return process


def rate(place: Container) -> int:
    return round(place.device().rate_percent)


def goes_on(process: "subprocess.Popen[str]", place: Container) -> bool:
    """Whether a load still launches kernels."""
    before = place.device().launches
    eventually(lambda: process.poll() is not None or place.device().launches > before + 50)
    return process.poll() is None


def test_forged_and_cut_off_files_of_a_container_leave_its_neighbour_what_it_was_promised(
    node: VirtualNode, running: ExitStack
):
    # given two containers on a card, each with a hard half of it
    victim, attacker = (
        container(node, limit(node, compute_percent=50), name=name, cards=True) for name in ("victim", "attacker")
    )
    if not can_confine():
        pytest.skip("needs root and unshare: the rights to make namespaces")
    process = load(running, victim)
    eventually(lambda: rate(victim) == 50)
    # when one of them writes 63 tenants on the card, cuts it off, and wants more than there is
    forger = node.start(forgery(attacker))
    running.callback(kill, forger)
    # then it can do to its own file what it likes, and to no other anything
    assert [said(forger) for _ in range(FORBIDDEN)] == ["Read-only file system"] * FORBIDDEN
    assert [said(forger) for _ in range(PERMITTED)] == ["done"] * PERMITTED
    # and the other one runs on at what it was promised
    deadline_s = time.monotonic() + 1.0
    while time.monotonic() < deadline_s:
        assert rate(victim) == 50
        time.sleep(0.02)
    assert goes_on(process, victim)


def test_what_a_neighbour_wants_turns_its_grant_on_and_never_makes_it_larger(node: VirtualNode, running: ExitStack):
    # given a card with a hard half and two soft tenths
    victim = container(node, limit(node, compute_percent=50), name="victim", cards=True)
    greedy = [container(node, limit(node, soft_compute_percent=10), name=str(n), cards=True) for n in range(2)]
    process = load(running, victim)
    # when those want all that a number can say
    for place in greedy:
        for path in demand_paths(place.limits):
            end_ns = time.monotonic_ns() + 30_000_000_000
            path.write_bytes(bytes(Demand(int.from_bytes(b"BEDEMAND", "little"), 2, 2**32 - 1, end_ns, 2**63 - 1)))
    # then the half stays a half
    assert goes_on(process, victim)
    assert rate(victim) == 50


# Nonsense in a region may stop its owner, as a signal of the same user may: it has a lock in it.
@pytest.mark.parametrize(
    ("what", "how"),
    [
        (what, how)
        for what in ("card", "demand", "region")
        for how in ("cut off", "shortened", "a pipe", "a link", "nonsense")
        if (what, how) != ("region", "nonsense")
    ],
)
def test_a_process_of_the_same_user_cannot_end_a_neighbour_through_its_files(
    node: VirtualNode, running: ExitStack, what: str, how: str
):
    # given a job that runs, and one of the same user, which may write all its files
    place = container(node, limit(node, 100, compute_percent=50), cards=True)
    process = load(running, place)
    path = truncatable(place)[what]
    size = path.stat().st_size
    if how == "cut off":
        os.truncate(path, 0)
    elif how == "shortened":
        os.truncate(path, size // 2)
    elif how == "nonsense":
        path.write_bytes(b"\xff" * size)
    else:
        path.unlink()
        if how == "a pipe":
            os.mkfifo(path)
        elif how == "a link":
            path.symlink_to("/dev/zero")

    # then the neighbour runs on, and has not more than it was given
    def busy_s() -> float:
        return node.read()[0].processes[0].busy_ns / 1e9

    began_s, before_s = time.monotonic(), busy_s()
    time.sleep(0.6)
    assert process.poll() is None
    assert (busy_s() - before_s) / (time.monotonic() - began_s) < 0.75
    eventually(lambda: busy_s() > before_s + 0.1)


def test_when_the_accounts_are_gone_nothing_more_is_given(node: VirtualNode):
    place = container(node, limit(node, 100))
    code = """
start()
print(allocate(10 * MIB)[0])
os.truncate(sys.argv[1], 0)
print(allocate(10 * MIB)[0], allocate(10 * MIB)[0])
"""
    told = place.run_python(code, str(place.limits.region)).split()
    assert told == ["0", str(OUT_OF_MEMORY), str(OUT_OF_MEMORY)]


def test_a_fault_that_is_not_in_the_region_ends_the_program_as_ever(node: VirtualNode, tmp_path: Path):
    place = container(node, limit(node, 100))
    (tmp_path / "other").write_bytes(bytes(4096))
    code = """
import mmap
start()
print(allocate(MIB)[0], flush=True)
file = open(sys.argv[1], "r+b")
mapped = mmap.mmap(file.fileno(), 4096)
file.truncate(0)
mapped[0]
"""
    done = place.run([node.python, "-c", DRIVER + code, str(tmp_path / "other")])
    assert (done.returncode, done.stdout) == (-7, "0\n")


def test_a_card_of_another_user_does_not_count(node: VirtualNode, running: ExitStack):
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    place = container(node, limit(node, soft_compute_percent=30), cards=True)
    assert place.limits.cards is not None
    os.chown(place.limits.cards / node.read()[0].uuid, NOBODY, NOBODY)
    process = load(running, place)
    assert goes_on(process, place)
    assert rate(place) == 30  # and not all of the card, which is idle


class TestGrants:
    """Who is on a card, as the device plugin or the server writes it."""

    def limits(self, folder: Path, name: str, **numbers: int) -> ShareLimits:
        return ShareLimits(name, folder / name / "region", (DeviceLimit("GPU-1", **numbers),), folder / "cards")

    def test_a_container_has_one_place_and_its_last_grant_counts(self, tmp_path: Path):
        cards = CardFolder(tmp_path / "cards")
        cards.grant(self.limits(tmp_path, "a", compute_percent=30))
        cards.grant(self.limits(tmp_path, "b", soft_compute_percent=20, weight=7))
        cards.grant(self.limits(tmp_path, "a", compute_percent=60))
        assert [(one.hard_permille, one.soft_permille, one.weight) for one in cards.tenants("GPU-1")] == [
            (1000, 200, 7),
            (600, 0, 100),
        ]

    def test_those_that_are_gone_leave_no_file(self, tmp_path: Path):
        cards = CardFolder(tmp_path / "cards")
        stays, goes = self.limits(tmp_path, "stays"), self.limits(tmp_path, "goes")
        for one in (stays, goes):
            cards.grant(one)
        cards.keep_only([stays])
        assert [one.key for one in cards.tenants("GPU-1")] == [tenant_key(stays)]
        assert sorted(path.name for path in cards.path.iterdir()) == ["GPU-1", demand_paths(stays)[0].name]

    def test_a_full_card_takes_another_in_the_place_of_one_that_left(self, tmp_path: Path):
        cards = CardFolder(tmp_path / "cards")
        held = [self.limits(tmp_path, f"t{number}") for number in range(MAX_TENANTS)]
        until_ns = time.monotonic_ns() + 10_000_000_000
        for one in held:
            cards.grant(one)
            demand_paths(one)[0].write_bytes(bytes(Demand(0, 0, 0, until_ns, 0)))
        # when all are active, then there is no room
        with pytest.raises(InputError, match="GPU-1 is shared by 64 containers"):
            cards.grant(self.limits(tmp_path, "new"))
        # when one has left, then it is that one's place
        demand_paths(held[5])[0].write_bytes(bytes(Demand(0, 0, 0, 0, 0)))
        cards.grant(self.limits(tmp_path, "new"))
        keys = {one.key for one in cards.tenants("GPU-1")}
        assert len(keys) == MAX_TENANTS
        assert tenant_key(held[5]) not in keys


def test_a_region_with_anything_in_it_is_read(node: VirtualNode, tmp_path: Path):
    place = container(node, limit(node, 100))
    place.run_python("start(); allocate(MIB)")
    good, chance = place.limits.region.read_bytes(), random.Random(7)
    path = tmp_path / "region"
    for _ in range(300):
        spoilt = bytearray(good)
        for _ in range(chance.randint(1, 40)):
            spoilt[chance.randrange(12, 4000)] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        path.write_bytes(spoilt)
        assert len(read_region(path).devices) <= 16


@pytest.mark.parametrize("trap", ["pipe", "link", "endless", "folder"])
def test_what_a_container_puts_in_the_place_of_its_region_is_not_waited_for(tmp_path: Path, trap: str):
    path = tmp_path / "region"
    if trap == "pipe":
        os.mkfifo(path)
    elif trap == "folder":
        path.mkdir()
    elif trap == "endless":
        path.touch()
        os.truncate(path, 1 << 40)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(InputError, match=r"cannot read|not the region"):
        read_region(path)
