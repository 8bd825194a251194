"""The node, or the two nodes, that make a gang hang are found by trying parts of it."""

import itertools
import math

import pytest

from batuta.prediction.hang import GangTest, SearchResult, find_faulty_nodes

WHOLE = frozenset(f"n{number:02}" for number in range(16))


def search(guilty: frozenset[str], nodes: frozenset[str] = WHOLE) -> tuple[SearchResult, int]:
    """What is found in a gang that hangs when all of `guilty` are in it, and after how many tries."""
    tried = [GangTest(nodes, hung=True)]
    while (found := find_faulty_nodes(tried)).to_test:
        assert len(tried) < 64, "it goes on for ever"
        tried.append(GangTest(found.to_test, hung=guilty <= found.to_test))
    return found, len(tried) - 1


@pytest.mark.parametrize("node", sorted(WHOLE))
def test_one_of_sixteen_nodes_is_found_in_four_tries_and_a_proof(node):
    found, tries = search(frozenset((node,)))
    assert found == SearchResult(frozenset((node,)))
    assert tries <= 5


@pytest.mark.parametrize("pair", list(itertools.combinations(sorted(WHOLE), 2))[::7])
def test_of_two_that_only_hang_together_one_is_found_at_least(pair):
    found, tries = search(frozenset(pair))
    assert found.faulty
    assert found.faulty <= frozenset(pair)
    assert tries <= 5 + math.ceil(2 * math.log2(len(WHOLE)))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64])
def test_gangs_of_any_size_are_searched(size):
    nodes = frozenset(map(str, range(size)))
    found, tries = search(frozenset("0"), nodes)
    assert found == SearchResult(frozenset("0"))
    assert tries <= math.ceil(math.log2(size)) + 1


def test_a_hang_on_two_sets_of_nodes_is_the_fault_of_what_they_share():
    tried = [GangTest(frozenset("abcd"), hung=True), GangTest(frozenset("dxyz"), hung=True)]
    assert find_faulty_nodes(tried) == SearchResult(frozenset("d"))


def test_what_went_well_is_beyond_suspicion():
    tried = [GangTest(frozenset("abcd"), hung=True), GangTest(frozenset("abc"), hung=False)]
    assert find_faulty_nodes(tried) == SearchResult(frozenset("d"))


def test_two_nodes_that_are_well_with_all_others_are_guilty_together():
    good = (frozenset("abc"), frozenset("abd"))
    tried = [GangTest(frozenset("abcd"), hung=True), *(GangTest(nodes, hung=False) for nodes in good)]
    assert find_faulty_nodes(tried) == SearchResult(frozenset("cd"))


def test_a_suspect_is_not_guilty_before_the_others_went_on_without_it():
    tried = [
        GangTest(frozenset("abcd"), hung=True),
        GangTest(frozenset("ab"), hung=False),
        GangTest(frozenset("c"), hung=False),
    ]
    assert find_faulty_nodes(tried) == SearchResult(to_test=frozenset("abc"))
    assert find_faulty_nodes([*tried, GangTest(frozenset("abc"), hung=False)]) == SearchResult(frozenset("d"))
    assert find_faulty_nodes([*tried, GangTest(frozenset("abc"), hung=True)]) != SearchResult(frozenset("d"))


def test_nobody_is_guilty_when_the_same_nodes_hang_and_do_not():
    tried = [GangTest(frozenset("abcd"), hung=True), GangTest(frozenset("abcd"), hung=False)]
    assert find_faulty_nodes(tried) == SearchResult()


def test_nor_when_hangs_have_nothing_in_common():
    tried = [GangTest(frozenset("ab"), hung=True), GangTest(frozenset("cd"), hung=True)]
    assert find_faulty_nodes(tried) == SearchResult()


def test_without_a_hang_there_is_nothing_to_find():
    with pytest.raises(ValueError, match="no test has hung"):
        find_faulty_nodes([GangTest(WHOLE, hung=False)])
