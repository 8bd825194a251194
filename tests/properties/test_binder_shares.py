"""Shares of GPUs: no card is ever given away twice, and many nodes are judged as each one is."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.backends.kube import names
from batuta.backends.kube.binder import Binder, Need, profile_of
from batuta.backends.kube.binder.plugins.gpus import GpuShare
from tests.support.examples import examples
from tests.support.kube.cluster_invariants import check_cluster
from tests.unit.backends.kube.binder.test_gpus import share, shared_node, utilisation
from tests.unit.backends.kube.binder.things import cluster, pod, single


@given(seed=st.integers(0, 2**32 - 1), order=st.sampled_from(["bin_pack", "spread"]))
@settings(max_examples=examples(60), deadline=None)
def test_no_card_is_given_away_twice(seed: int, order: str) -> None:
    dice = random.Random(seed)
    reports = [utilisation(0.0, *(dice.random() for _ in range(3))) for _ in range(4)]
    where = cluster(*(shared_node(f"n{i}", dice.randint(1, 3), annotations=report) for i, report in enumerate(reports)))
    weights = {"resources": 1.0, "gpus": 0.0, "gpu_share": 1.0, "utilisation": 1.0}
    binder = Binder(where, profile_of(weights, {"gpu_share": {"order": order}}))
    groups = [
        single(pod(f"w{number}", gpu=dice.randint(1, 2)))
        if dice.random() < 0.2
        else single(
            share(
                f"s{number}",
                dice.choice([200, 400, 700]),
                dice.choice([0, 30, 60]),
                annotations=dice.choice([{}, {names.SHARE_LIMITS: "soft"}]),
            ),
            load=dice.choice([None, 0.2, 0.5]),
            priority=dice.randint(0, 1),
        )
        for number in range(24)
    ]

    for half in (groups[:12], groups[12:]):
        outcome = binder.schedule(half, 10.0)
        for refusal in outcome.refusals:
            assert refusal.reasons
        assert_alike(binder, order, dice)
        for binding in outcome.bindings:
            if dice.random() < 0.3:
                where.pod_gone(binding.key)
    check_cluster(where)

    cards = where.gpu_table
    assert (cards.memory_taken_mib <= cards.memory_mib).all()
    assert (cards.compute_taken + cards.soft_taken <= 100).all()
    assert (cards.held <= 1).all()
    assert not ((cards.held > 0) & (cards.sharers > 0)).any()
    assert ((cards.sharers < 2) | (cards.load <= 0.7 + 1e-9)).all()


def assert_alike(binder: Binder, order: str, dice: random.Random) -> None:
    plugin = GpuShare(order=order)  # type: ignore[arg-type]
    cls = binder.cluster.class_of(share("probe", dice.choice([100, 500]), dice.choice([0, 50])))
    need = Need(cls, load=dice.choice([None, 0.3]))
    rows = np.arange(len(binder.cluster.nodes))
    fits, scores = plugin.judge(need, binder.cluster, rows)
    assert (fits == plugin.filter(need, binder.cluster, rows)).all()
    assert (scores == plugin.score(need, binder.cluster, rows)).all()
    for row in rows:
        assert (plugin.check(need, binder.cluster, int(row)) is None) == fits[row]
        if fits[row]:
            card = plugin.pick(need, binder.cluster, int(row))
            assert plugin.check(need, binder.cluster, int(row), (card,)) is None
