"""Where shares of GPUs go on Kubernetes, as the operator's configuration says."""

from __future__ import annotations

import pytest

from batuta.backends.kube.binder.plugins.gpu_share import GpuShare
from batuta.backends.kube.operator_config import OperatorConfig
from batuta.bootstrap import rules_for
from batuta.bootstrap.operator_leader import binder_profile, sharing_rules
from batuta.placement import TopologyPlacer


@pytest.mark.parametrize(("order", "plugin"), [("bin-pack", "bin_pack"), ("spread", "spread")])
def test_the_world_and_the_binder_place_shares_in_the_same_way(order: str, plugin: str) -> None:
    config = OperatorConfig.model_validate({"placement": {"shares": order, "busiest": 0.5}})
    (share,) = (one.plugin for one in binder_profile(config).plugins if isinstance(one.plugin, GpuShare))
    placer = sharing_rules(rules_for("elastic-fifo"), config).placer
    assert isinstance(placer, TopologyPlacer)
    assert (share.order, share.busiest, placer.options.shares) == (plugin, 0.5, order)


def test_without_a_word_cards_are_filled_up_to_70_percent_of_use() -> None:
    (share,) = (
        one.plugin for one in binder_profile(OperatorConfig()).plugins if isinstance(one.plugin, GpuShare)
    )
    assert (share.order, share.busiest) == ("bin_pack", 0.7)
