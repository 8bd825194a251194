import json

import pytest

from batuta.spec.json_reader import Position, find_positions, format_path

TEXT = """{
  "a": [1, {"b\\"": "},]"}, []],
  "c": {"d": null}
}
"""


@pytest.mark.parametrize(
    ("path", "place", "written"),
    [
        ((), Position(1, 1), ""),
        (("a",), Position(2, 8), "a"),
        (("a", 0), Position(2, 9), "a[0]"),
        (("a", 1, 'b"'), Position(2, 20), 'a[1].b"'),
        (("a", 2), Position(2, 28), "a[2]"),
        (("c", "d"), Position(3, 14), "c.d"),
    ],
)
def test_finds_the_place_of_a_value(path: tuple[str | int, ...], place: Position, written: str) -> None:
    json.loads(TEXT)
    assert find_positions(TEXT, [path]) == {path: place}
    assert format_path(path) == written


def test_what_is_not_there_is_not_found() -> None:
    assert find_positions(TEXT, [("c", "e"), ("a", 9)]) == {}


def test_a_list_on_top_is_written_with_its_index() -> None:
    assert format_path((2, "jobs", 3, "min")) == "[2].jobs[3].min"
