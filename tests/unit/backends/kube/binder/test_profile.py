"""Profiles: which plugins run, with which settings, and plugins that other packages bring."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from batuta.backends.kube.binder import BadProfile, Binder, default_profile, profile_of
from batuta.backends.kube.binder.profile import registered
from tests.unit.backends.kube.binder.things import cluster, node, places, pod, single


def test_the_default_profile_has_every_plugin_of_batuta() -> None:
    assert [one.plugin.name for one in default_profile().plugins] == list(registered())


def test_a_plugin_that_is_left_out_does_not_filter() -> None:
    where = cluster(node("n", unschedulable=True))

    outcome = Binder(where, profile_of({"resources": 1.0})).schedule([single(pod("p"))], 0.0)

    assert places(outcome) == {"p": "n"}


def test_weights_decide_between_plugins_that_disagree() -> None:
    """Packing wants the used node; the taint asks to stay away from it."""
    soft = {"key": "k", "value": "", "effect": "PreferNoSchedule"}
    for weights, choice in (
        ({"resources": 9.0, "taints": 1.0}, "used"),
        ({"resources": 1.0, "taints": 9.0}, "empty"),
    ):
        where = cluster(node("used", taints=[soft]), node("empty"), pod("x", on="used", cpu=4))

        outcome = Binder(where, profile_of(weights)).schedule([single(pod("p", cpu=1))], 0.0)

        assert places(outcome) == {"p": choice}


def test_all_faults_of_a_profile_are_told_at_once_with_what_there_is() -> None:
    with pytest.raises(BadProfile) as raised:
        profile_of({"resource": 1.0, "resources": 1.0}, {"resources": {"ordr": "spread"}, "gpus": {"x": 1}})

    told = str(raised.value)
    assert "no binder plugin is named 'resource': there is gpu_share, gpus, host_ports" in told
    assert "no setting of resources is named 'ordr': there is gpu_nodes_last, order" in told
    assert "no setting of gpus is named 'x': there is none" in told


PLUGIN = '''
from typing import ClassVar
from batuta.backends.kube.binder import Plugin, Scope

class Alphabet(Plugin):
    """Nodes late in the alphabet are better."""

    name: ClassVar[str] = "alphabet"
    scope: ClassVar[Scope] = Scope.NODE

    def scores(self, need):
        return True

    def score(self, need, cluster, rows):
        import numpy as np
        return np.array([ord(cluster.nodes.name[row][0]) / 255 for row in rows])
'''


def test_another_package_can_bring_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "alphabet_plugin.py").write_text(PLUGIN)
    info = tmp_path / "alphabet_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: alphabet-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[batuta.binder_plugins]\nalphabet = alphabet_plugin:Alphabet\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registered.cache_clear()
    try:
        profile = profile_of({"resources": 0.0, "alphabet": 1.0})
        outcome = Binder(cluster(node("a"), node("z"), node("m")), profile).schedule([single(pod("p"))], 0.0)
    finally:
        registered.cache_clear()
        sys.modules.pop("alphabet_plugin", None)

    assert places(outcome) == {"p": "z"}
