"""What jobs ask of quota: those that are alike share the answer, and it is there as columns too."""

from batuta.core.quota import MILLI, ClusterQueue, ResourceGroup
from tests.support.quota_round import Round, team
from tests.support.quotas import GPU, gpus, quota_of


def test_jobs_of_one_size_ask_for_the_very_same_whatever_their_priority() -> None:
    asks = Round(team(), (2, 0), (3, 0), (2, 1)).roll.ask_of
    assert asks[0] is asks[2]
    assert asks[0] is not asks[1]


def test_what_each_asks_for_is_a_column_where_it_has_no_choice() -> None:
    given = Round(team(), (2, 0), (3, 0))
    assert given.roll.cell.tolist() == [given.cell, given.cell]
    assert given.roll.amount.tolist() == [2 * MILLI, 3 * MILLI]


def test_whoever_has_a_choice_of_flavors_has_no_cell_of_its_own() -> None:
    [own], [other] = gpus(4, flavor="x"), gpus(4, flavor="y")
    [first], [second] = own.flavors, other.flavors
    quota = quota_of(ClusterQueue("a", "", (ResourceGroup((GPU,), (first, second)),)))
    given = Round(quota, (2, 0))
    assert given.roll.cell.tolist() == [-1]
    assert given.roll.ask_of[0].flavors == ((GPU, "x"),)
