"""Labels of a task say what is done about ranks that hold it up."""

import math

import pytest

from batuta.spec.problem import InputError
from batuta.spec.task import parse_task
from batuta.spec.task_resources import RankSettings, rank_settings


def wishes(*labels: str) -> RankSettings:
    text = f"run: train\nresources: {{labels: {{{', '.join(labels)}}}}}\n"
    return rank_settings(dict(parse_task(text).labels))


def test_labels_are_understood():
    assert wishes("batuta.dev/hang-after: 2h", "batuta.dev/stragglers: report") == RankSettings(7200.0, "report")
    assert wishes("batuta.dev/hang-after: off", "batuta.dev/stragglers: off") == RankSettings(math.inf, "off")
    assert wishes("other: thing") == RankSettings()


def test_what_means_nothing_is_refused_with_its_place_and_the_fix():
    with pytest.raises(InputError) as refused:
        wishes("batuta.dev/hang-after: soon", "batuta.dev/stragglers: perhaps")
    first, second = refused.value.problems
    assert first.message.startswith("label batuta.dev/hang-after: the time 'soon' is not a duration")
    assert (second.line, second.fix) == (2, "one of move, report, off")
    with pytest.raises(InputError, match="must be more than 0"):
        wishes("batuta.dev/hang-after: 0s")
