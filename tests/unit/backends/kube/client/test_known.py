"""What is known of objects: versions only go forward, and names may be used again."""

from dataclasses import dataclass, field

from batuta.backends.kube.client.informer import Change, ObjectStore, newer
from batuta.backends.kube.objects import Meta


@dataclass
class Thing:
    """An object with nothing but a name, a uid and a version."""

    metadata: Meta = field(default_factory=Meta)


def thing(name: str, version: int, uid: str = "") -> Thing:
    return Thing(Meta(name=name, namespace="n", uid=uid or name, resource_version=str(version)))


def said(changes: list[Change[Thing]]) -> list[tuple[str, str, str]]:
    return [(c.did.value, c.object.metadata.name, c.object.metadata.resource_version) for c in changes]


def test_a_list_tells_only_the_differences() -> None:
    known = ObjectStore[Thing]()
    assert said(known.replace([thing("a", 1), thing("b", 2)])) == [("ADDED", "a", "1"), ("ADDED", "b", "2")]
    assert said(known.replace([thing("a", 1), thing("b", 2)])) == []
    assert said(known.replace([thing("a", 3)])) == [("MODIFIED", "a", "3"), ("DELETED", "b", "2")]
    assert list(known.objects) == ["n/a"]


def test_a_list_is_believed_even_where_its_versions_went_back() -> None:
    known = ObjectStore[Thing]()
    known.replace([thing("a", 100)])
    assert said(known.replace([thing("a", 7)])) == [("MODIFIED", "a", "7")]


def test_an_older_version_in_a_watch_is_dropped() -> None:
    known = ObjectStore[Thing]()
    known.replace([thing("a", 9)])
    changes: list[Change[Thing]] = []
    known.put(thing("a", 9), changes)
    known.put(thing("a", 8), changes)
    assert changes == []
    known.put(thing("a", 10), changes)
    assert said(changes) == [("MODIFIED", "a", "10")]


def test_the_end_of_a_predecessor_does_not_end_its_successor() -> None:
    known = ObjectStore[Thing]()
    known.replace([thing("a", 9, uid="second")])
    changes: list[Change[Thing]] = []
    known.drop(thing("a", 5, uid="first"), changes)
    known.drop(thing("b", 6), changes)
    assert changes == []
    known.drop(thing("a", 10, uid="second"), changes)
    assert said(changes) == [("DELETED", "a", "10")]
    assert not known.objects


def test_a_successor_ends_its_predecessor() -> None:
    known = ObjectStore[Thing]()
    known.replace([thing("a", 1, uid="first")])
    changes: list[Change[Thing]] = []
    known.put(thing("a", 2, uid="second"), changes)
    assert said(changes) == [("DELETED", "a", "1"), ("ADDED", "a", "2")]


def test_versions_are_compared_as_numbers() -> None:
    assert newer("10", than="9")
    assert not newer("9", than="10")
    assert newer("x", than="9")
