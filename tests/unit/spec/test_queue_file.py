"""Queues from a file: all of them, or all that is wrong."""

from pathlib import Path

import pytest

from batuta.core.cluster import Queue
from batuta.spec.problem import InputError
from batuta.spec.queue_file import read_queue_file


def read(folder: Path, text: str) -> tuple[Queue, ...]:
    file = folder / "queues.yaml"
    file.write_text(text)
    return read_queue_file(file)


def test_queues(tmp_path):
    text = """
queues:
  - name: team-a
    quota: {H100: 8, "*": 16}
    cohort: research
    weight: 2
  - {name: night, held: yes}
"""
    assert read(tmp_path, text) == (
        Queue("team-a", (("H100", 8), ("*", 16)), "research", 2.0),
        Queue("night", held=True),
    )


def test_everything_that_is_wrong_is_told_with_its_place(tmp_path):
    text = """
queues:
  - {name: a, quta: {H100: 8}}
  - {name: b, quota: {H100: many}}
  - {quota: {}}
  - {name: "b b", weight: 0, held: perhaps}
  - {name: a}
  - {name: a}
"""
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    told = [(problem.line, problem.message) for problem in caught.value.problems]
    assert [line for line, _ in told] == [3, 4, 5, 6, 6, 6, 7, 8]
    assert told[0][1] == "unknown key quta in a queue"
    assert "appears twice" in told[-1][1]


@pytest.mark.parametrize("text", ["[]", "queue: []", "queues: 3", "# nothing"])
def test_what_is_no_file_of_queues(tmp_path, text):
    with pytest.raises(InputError):
        read(tmp_path, text)
