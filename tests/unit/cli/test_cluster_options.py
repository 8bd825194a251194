"""Options before the verb: which cluster is meant, if any."""

from pathlib import Path

import pytest

from batuta.cli.cluster_options import choose_cluster, chosen_cluster, cluster_of, command
from batuta.spec.problem import InputError


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("BATUTA_CONTEXT", raising=False)
    yield
    choose_cluster(None, None)


def test_without_options_it_is_a_server_of_ours():
    assert cluster_of(None, None, None, False) is None


def test_any_of_the_options_means_a_cluster():
    for said in (("prod", None, None, False), (None, Path("config"), None, False), (None, None, None, True)):
        found = cluster_of(*said)
        assert found is not None
        assert found.is_said


def test_the_environment_names_a_context_that_options_override(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BATUTA_CONTEXT", "usual")
    by_environment = cluster_of(None, None, None, False)
    assert by_environment is not None
    assert (by_environment.context, by_environment.is_said) == ("usual", False)
    assert getattr(cluster_of(None, None, "team-a", False), "context", "") == "usual"
    assert getattr(cluster_of("prod", None, None, False), "context", "") == "prod"
    # A kubeconfig that is named has a current context of its own.
    assert getattr(cluster_of(None, Path("config"), None, False), "context", "") is None


def test_one_namespace_and_all_of_them_is_a_contradiction():
    with pytest.raises(InputError, match="one of both"):
        cluster_of(None, None, "team-a", True)


@pytest.mark.parametrize("verb", ["up", "simulate", "install", "operator"])
def test_verbs_that_talk_to_no_cluster_refuse_the_options(verb: str):
    with pytest.raises(InputError, match=f"batuta {verb} takes no cluster"):
        choose_cluster(cluster_of("prod", None, None, False), verb)


def test_the_environment_does_not_stand_in_the_way_of_other_verbs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BATUTA_CONTEXT", "usual")
    choose_cluster(cluster_of(None, None, None, False), "up")
    assert chosen_cluster() is not None


def test_hints_lead_to_the_same_cluster():
    assert command("logs", "17") == "batuta logs 17"
    choose_cluster(cluster_of("prod", None, "team-a", False), "launch")
    assert command("logs", "train") == "batuta --context prod -n team-a logs train"
