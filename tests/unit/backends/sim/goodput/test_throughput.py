"""Step times follow the measurements, whatever the order of the nodes."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.backends.sim.goodput import throughput
from batuta.backends.sim.goodput.application import Application, load_applications, save_points
from batuta.backends.sim.goodput.throughput import pack, rotate_to_smallest
from tests.unit.backends.sim.goodput.toy_profiles import step_s, sync_s


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8).map(tuple))
def test_all_rotations_have_one_smallest_form(placement: tuple[int, ...]):
    smallest = rotate_to_smallest(placement)
    assert all(
        rotate_to_smallest(placement[i:] + placement[:i]) == smallest <= placement[i:] + placement[:i]
        for i in range(len(placement))
    )


@given(st.integers(1, 200), st.integers(1, 8))
def test_packing_fills_nodes_and_puts_the_rest_last(gpus: int, per_node: int):
    placement = pack(gpus, per_node)
    assert sum(placement) == gpus
    assert all(used == per_node for used in placement[:-1])
    assert 1 <= placement[-1] <= per_node


def test_a_measured_placement_is_linear_in_the_local_batch(toy: Application):
    time = toy.throughput.at((1, 2), 25)
    assert time is not None
    assert time == pytest.approx((step_s(2, 3, 25), sync_s(2)))


def test_a_rotated_placement_takes_as_long(toy: Application):
    assert toy.throughput.at((2, 1, 1, 1), 10) == toy.throughput.at((1, 1, 2, 1), 10)


def test_a_placement_that_was_not_measured_lies_between_its_neighbours(toy: Application):
    time = toy.throughput.at((2,) * 7, 25)
    assert time is not None
    assert time == pytest.approx((step_s(7, 14, 25), sync_s(7)))


def test_more_nodes_than_were_measured_count_as_the_most(toy: Application):
    assert toy.throughput.at((1,) * 20, 20) == toy.throughput.at((1,) * 12 + (2,) * 4, 20)


@pytest.mark.parametrize(("placement", "local"), [((1,), 9), ((1,), 41), ((2,) * 7, 41), ((4,) * 17, 20)])
def test_outside_of_the_measurements_there_is_no_answer(toy: Application, placement: tuple[int, ...], local: int):
    assert toy.throughput.at(placement, local) is None


def test_accumulation_repeats_the_step_without_its_synchronisation(toy: Application):
    time = toy.throughput.at((1, 1), 20)
    assert time is not None
    assert time.iteration_s(3) == pytest.approx(step_s(2, 2, 20) + 3 * (step_s(2, 2, 20) - sync_s(2)))


def test_saved_points_spare_the_next_run_the_interpolation(
    toy: Application, toy_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    inside, outside = toy.throughput.at((2,) * 7, 25), toy.throughput.at((2,) * 7, 41)
    save_points({"toy": toy})

    def refuse(*_: object) -> None:
        raise AssertionError("interpolated again")

    monkeypatch.setattr(throughput, "_interpolator", refuse)
    again = load_applications(toy_folder)["toy"]
    assert again.throughput.at((2,) * 7, 25) == inside
    assert again.throughput.at((2,) * 7, 41) is outside is None


def test_two_runs_that_save_do_not_lose_each_others_points(toy_folder: Path, monkeypatch: pytest.MonkeyPatch):
    first, second = load_applications(toy_folder), load_applications(toy_folder)
    expected = first["toy"].throughput.at((2,) * 7, 25), second["toy"].throughput.at((1,) * 7, 25)
    save_points(first)
    save_points(second)
    monkeypatch.setattr(throughput, "_interpolator", None)
    third = load_applications(toy_folder)["toy"].throughput
    assert (third.at((2,) * 7, 25), third.at((1,) * 7, 25)) == expected


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"\x93NUMPY\x01\x00"])
def test_broken_points_are_computed_again(toy: Application, toy_folder: Path, cache: Path, content: bytes):
    expected = toy.throughput.at((2,) * 7, 25)
    save_points({"toy": toy})
    (stored,) = cache.glob("points-*.npz")
    for broken in (content, stored.read_bytes()[:100]):
        stored.write_bytes(broken)
        assert load_applications(toy_folder)["toy"].throughput.at((2,) * 7, 25) == expected


def test_other_arrays_in_place_of_points_are_ignored(toy: Application, toy_folder: Path, cache: Path):
    expected = toy.throughput.at((2,) * 7, 25)
    save_points({"toy": toy})
    (stored,) = cache.glob("points-*.npz")
    for other in ({"strange": np.zeros(3)}, {"keys": np.zeros((2, 3)), "times": np.zeros(2)}):
        np.savez(stored, **other)
        assert load_applications(toy_folder)["toy"].throughput.at((2,) * 7, 25) == expected


def test_a_cache_that_cannot_be_written_does_no_harm(toy: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    blocked = tmp_path / "a file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert toy.throughput.at((2,) * 7, 25) is not None
    save_points({"toy": toy})


def test_nothing_half_written_stays_in_the_cache(toy: Application, cache: Path):
    toy.throughput.at((2,) * 7, 25)
    save_points({"toy": toy})
    assert [path.suffix for path in cache.iterdir()] == [".npz"]
