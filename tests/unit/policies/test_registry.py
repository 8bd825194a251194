from importlib.metadata import EntryPoint

import pytest

from batuta.policies import registry
from batuta.policies.checked import BrokenPolicyError, CheckedPolicy
from batuta.policies.fifo import Fifo
from batuta.policies.registry import UnknownPolicyError, load_policy, policy_names

EIGHT = ["fifo", "srjf", "tiresias", "elastic-fifo", "elastic-srjf", "elastic-tiresias", "ffdl", "afs-l"]

NO_POLICY = object()
MADE = Fifo(name="made")


def broken() -> Fifo:
    raise RuntimeError("no licence")


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other packages announce policies, good and bad."""
    here = "batuta_test_registry"
    points = [
        EntryPoint("made", f"{here}:MADE", registry.GROUP),
        EntryPoint("factory", f"{here}:Fifo", registry.GROUP),
        EntryPoint("broken", f"{here}:broken", registry.GROUP),
        EntryPoint("no-policy", f"{here}:NO_POLICY", registry.GROUP),
        EntryPoint("missing", "batuta_no_such_module:Policy", registry.GROUP),
        EntryPoint("fifo", f"{here}:broken", registry.GROUP),
    ]
    import sys
    import types

    module = types.ModuleType(here)
    vars(module).update(MADE=MADE, Fifo=Fifo, broken=broken, NO_POLICY=NO_POLICY)
    monkeypatch.setitem(sys.modules, here, module)
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == registry.GROUP else [])


def test_the_eight_are_there() -> None:
    assert policy_names()[:8] == EIGHT
    for name in EIGHT:
        assert load_policy(name).name == name


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("elastic-fifi", "did you mean elastic-fifo?"),
        ("Tiresias", "did you mean tiresias?"),
        ("xyzzy", "known: fifo"),
    ],
)
def test_an_unknown_name_gets_a_hint(name: str, hint: str) -> None:
    with pytest.raises(UnknownPolicyError, match=name) as caught:
        load_policy(name)
    assert hint in str(caught.value)


@pytest.mark.usefixtures("announced")
def test_policies_of_other_packages_are_found() -> None:
    assert policy_names() == [*registry.BUILT_IN, "broken", "factory", "made", "missing", "no-policy"]
    for name, own in (("made", MADE), ("factory", Fifo())):
        found = load_policy(name)
        assert isinstance(found, CheckedPolicy)
        assert (found.name, found.traits.parted) == (own.name, False)


@pytest.mark.usefixtures("announced")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("broken", "RuntimeError: no licence"),
        ("missing", "No module named 'batuta_no_such_module'"),
        ("no-policy", "is not callable"),
    ],
)
def test_a_broken_one_says_so_and_harms_no_other(name: str, why: str) -> None:
    with pytest.raises(BrokenPolicyError, match=name) as caught:
        load_policy(name)
    assert why in str(caught.value)
    assert load_policy("fifo") == Fifo()
