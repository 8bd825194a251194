"""Reports of single ranks become rounds, whatever their order and rhythm."""

import math

from batuta.prediction.straggler import MOST_AHEAD, MOST_RANKS, RankRounds


def rounds_of(*reports: tuple[int, float, int]) -> list[list[float]]:
    rounds = RankRounds()
    found = (rounds.add(*report) for report in reports)
    return [row.tolist() for row in found if row is not None]


def test_ranks_that_report_each_step_make_one_round_per_step():
    steps = [(rank, 0.1 * (rank + 1), 1) for _ in range(3) for rank in range(3)]
    # Nobody knows how many ranks there will be before they have spoken.
    assert rounds_of(*steps)[-2:] == [[0.1, 0.2, 0.30000000000000004]] * 2


def test_several_reports_of_a_rank_in_one_round_are_taken_together():
    first = [(0, 1.0, 1), (1, 1.0, 1), (0, 1.0, 1)]
    assert rounds_of(*first, (0, 1.0, 4), (0, 2.0, 2), (1, 3.0, 3))[-1] == [0.5, 1.0]


def test_a_rank_that_has_gone_is_not_waited_for_for_ever():
    rounds = RankRounds()
    for rank in (0, 1, 0, 1):
        rounds.add(rank, 1.0, 1)
    found = [rounds.add(0, 1.0, 1) for _ in range(2 * MOST_AHEAD)]
    later = [row for row in found if row is not None]
    assert later
    assert later[-1].tolist() == [1.0]


def test_a_rank_that_is_missing_has_no_time():
    row = rounds_of((0, 1.0, 1), (2, 1.0, 1), (0, 1.0, 1), (2, 1.0, 1))[-1]
    assert math.isnan(row[1])


def test_what_makes_no_sense_is_left_out():
    nonsense = [
        (-1, 1.0, 1),
        (MOST_RANKS, 1.0, 1),
        (0, -1.0, 1),
        (0, math.nan, 1),
        (0, math.inf, 1),
        (0, 1.0, 0),
    ]
    assert rounds_of(*nonsense) == []
