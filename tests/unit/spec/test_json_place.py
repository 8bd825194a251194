import json

import pytest

from batuta.spec.json_place import Place, find_places, write_path

TEXT = """{
  "a": [1, {"b\\"": "},]"}, []],
  "c": {"d": null}
}
"""


@pytest.mark.parametrize(
    ("path", "place", "written"),
    [
        ((), Place(1, 1), ""),
        (("a",), Place(2, 8), "a"),
        (("a", 0), Place(2, 9), "a[0]"),
        (("a", 1, 'b"'), Place(2, 20), 'a[1].b"'),
        (("a", 2), Place(2, 28), "a[2]"),
        (("c", "d"), Place(3, 14), "c.d"),
    ],
)
def test_finds_the_place_of_a_value(path: tuple[str | int, ...], place: Place, written: str) -> None:
    json.loads(TEXT)
    assert find_places(TEXT, [path]) == {path: place}
    assert write_path(path) == written


def test_what_is_not_there_is_not_found() -> None:
    assert find_places(TEXT, [("c", "e"), ("a", 9)]) == {}


def test_a_list_on_top_is_written_with_its_index() -> None:
    assert write_path((2, "jobs", 3, "min")) == "[2].jobs[3].min"
