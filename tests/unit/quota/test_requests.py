"""What jobs ask of quota: those that are alike share the answer."""

from batuta.core.quota import MILLI, ClusterQueue, ResourceGroup
from tests.support.quota_cycle import QuotaCycle, team
from tests.support.quotas import GPU, gpus, quota_of


def test_jobs_of_one_size_ask_for_the_very_same_whatever_their_priority() -> None:
    requests = QuotaCycle(team(), (2, 0), (3, 0), (2, 1)).snapshot.request_of
    assert requests[0] is requests[2]
    assert requests[0] is not requests[1]


def test_a_job_without_a_choice_of_flavors_knows_its_flavor_and_amount() -> None:
    given = QuotaCycle(team(), (2, 0), (3, 0))
    found = [given.snapshot.request_of[row].flavor_choice for row in (0, 1)]
    assert [one and (one.fr, one.amount) for one in found] == [(given.fr, 2 * MILLI), (given.fr, 3 * MILLI)]


def test_whoever_has_a_choice_of_flavors_has_no_flavor_of_its_own() -> None:
    [own], [other] = gpus(4, flavor="x"), gpus(4, flavor="y")
    [first], [second] = own.flavors, other.flavors
    quota = quota_of(ClusterQueue("a", "", (ResourceGroup((GPU,), (first, second)),)))
    given = QuotaCycle(quota, (2, 0))
    assert given.snapshot.request_of[0].flavor_choice is None
    assert given.snapshot.request_of[0].flavors == ((GPU, "x"),)
