"""Figures of GPUs become findings when they are new, and only then."""

from batuta.core.health_record import Target
from batuta.core.health_signals import Figure, Seen, Values, news
from batuta.gpu.health.rules import read_rules

RULES = read_rules()


def told(seen: Seen, values: Values) -> list[str]:
    return [finding.name for finding in news(RULES, seen, {("n0", 1): values}, 7.0)]


def test_what_a_counter_had_counted_before_anybody_looked_is_no_news():
    seen: Seen = {}
    assert told(seen, {Figure.ECC_UNCORRECTED: 5}) == []
    assert told(seen, {Figure.ECC_UNCORRECTED: 7}) == ["ecc-uncorrected 2"]
    assert told(seen, {Figure.ECC_UNCORRECTED: 7}) == []


def test_a_counter_that_was_reset_counts_from_its_beginning():
    seen: Seen = {Target("n0", 1): {"ecc-uncorrected": 9}}
    assert told(seen, {Figure.ECC_UNCORRECTED: 1}) == ["ecc-uncorrected"]


def test_what_was_seen_before_a_restart_is_not_told_again():
    seen: Seen = {}
    assert told(seen, {Figure.REMAP_FAILED: 1, Figure.NVLINKS_DOWN: 2}) == ["remap-failed", "nvlinks-down 2"]
    kept = {target: dict(values) for target, values in seen.items()}
    assert told(kept, {Figure.REMAP_FAILED: 1, Figure.NVLINKS_DOWN: 2}) == []


def test_a_gpu_that_stays_hot_is_told_of_once_and_again_when_it_was_cool_between():
    seen: Seen = {}
    temperatures = (60, 96, 99, 95, 94, 97)
    assert [told(seen, {Figure.TEMPERATURE: one}) for one in temperatures] == [
        *([], ["temperature 96 °C"], [], [], []),
        ["temperature 97 °C"],
    ]


def test_what_no_rule_asks_for_is_not_told():
    seen: Seen = {}
    told(seen, {Figure.ECC_CORRECTED: 0})
    assert told(seen, {Figure.ECC_CORRECTED: 999}) == []
    assert told(seen, {Figure.ECC_CORRECTED: 1999}) == ["ecc-corrected 1000"]


def test_a_gpu_that_is_lost_is_told_of_at_the_first_look():
    assert told({}, {Figure.LOST: 1}) == ["lost"]
    assert told({}, {Figure.LOST: 0}) == []
