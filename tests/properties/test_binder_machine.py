"""Whatever happens in a cluster, the binder's columns say of every node what a plain loop says of it."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batuta.backends.kube import objects
from batuta.backends.kube.binder import Binder, Cluster, Group, Member, Outcome, Within, default_profile
from batuta.backends.kube.binder.node_scores import NodeScores, NodeScoresCache
from tests.support.examples import examples
from tests.support.kube.cluster_invariants import check_cluster
from tests.unit.backends.kube.binder import slow_model
from tests.unit.backends.kube.binder.things import GPU, node, pod

NODES = [f"n{i}" for i in range(6)]
SEEDS = st.integers(0, 2**32 - 1)
"""Nodes and pods are made from a seed: drawing each of their fields would leave time for few of them."""
HOST, ZONE = "kubernetes.io/hostname", "zone"


def any_node(name: str, dice: random.Random) -> objects.Node:
    labels = {key: value for key, value in _any_labels(dice).items() if value}
    taint = {
        "key": dice.choice(["team", "node.kubernetes.io/unschedulable"]),
        "value": dice.choice(["", "a"]),
        "effect": dice.choice(["NoSchedule", "PreferNoSchedule", "NoExecute"]),
    }
    return node(
        name,
        cpu=6,
        memory=1000,
        pods=dice.choice([3, 6, 9]),
        gpu=dice.randrange(4),
        labels=labels,
        taints=[taint] if _seldom(dice) else [],
        unschedulable=_seldom(dice) and _seldom(dice),
    )


def any_pod(dice: random.Random) -> objects.Pod:
    """Any pod; most say nothing peculiar, and about half have something to say about other pods."""
    spec: dict[str, Any] = {"affinity": {}}
    if _seldom(dice):
        tolerance = {"operator": dice.choice(["Exists", "Equal"]), "key": dice.choice(["team", ""])}
        spec["tolerations"] = [
            {**tolerance, "value": dice.choice(["", "a"]), "effect": dice.choice(["", "NoSchedule"])}
        ]
    if _seldom(dice):
        spec["nodeSelector"] = {ZONE: "z1"}
    if _seldom(dice):
        terms = [_any_node_term(dice) for _ in range(dice.randint(1, 2))]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"]["nodeAffinity"] = required
    for which in ("podAffinity", "podAntiAffinity"):
        if _seldom(dice):
            others = [_any_pod_term(dice) for _ in range(dice.randint(1, 2))]
            spec["affinity"][which] = {"requiredDuringSchedulingIgnoredDuringExecution": others}
    if _seldom(dice):
        spec["topologySpreadConstraints"] = [_any_spread(dice) for _ in range(dice.randint(1, 2))]
    requests = {"cpu": dice.choice(["0", "500m", "2"]), GPU: str(dice.choice([0, 0, 1, 2]))}
    container = {"name": "main", "resources": {"requests": requests}, "ports": _any_ports(dice)}
    return pod(
        "p",
        spec={**spec, "containers": [container]},
        labels={"app": _any_app(dice)},
        namespace=dice.choice(["default", "default", "default", "other"]),
    )


def _seldom(dice: random.Random) -> bool:
    return dice.random() < 0.25


def _any_app(dice: random.Random) -> str:
    return dice.choice(["web", "db"])


def _any_labels(dice: random.Random) -> dict[str, str]:
    return {ZONE: dice.choice(["z1", "z1", "z2", ""]), "disk": dice.choice(["ssd", "7", "12", ""])}


def _any_node_term(dice: random.Random) -> dict[str, Any]:
    if _seldom(dice):
        operator = dice.choice(["In", "NotIn"])
        return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": [dice.choice(NODES)]}]}
    expressions = [
        {"key": ZONE, "operator": dice.choice(["In", "NotIn"]), "values": ["z1", "z3"]},
        {"key": "disk", "operator": dice.choice(["In", "NotIn"]), "values": ["ssd"]},
        {"key": "disk", "operator": dice.choice(["Exists", "DoesNotExist"])},
        {"key": "disk", "operator": dice.choice(["Gt", "Lt"]), "values": ["10"]},
    ]
    return {"matchExpressions": dice.sample(expressions, dice.randint(0, 2))}


def _any_selector(dice: random.Random) -> dict[str, Any]:
    if _seldom(dice):
        return {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [_any_app(dice)]}]}
    return {"matchLabels": {"app": _any_app(dice)}}


def _any_pod_term(dice: random.Random) -> dict[str, Any]:
    term = {"topologyKey": dice.choice([ZONE, HOST]), "labelSelector": _any_selector(dice)}
    return {**term, "namespaces": ["default", "other"]} if _seldom(dice) else term


def _any_spread(dice: random.Random) -> dict[str, Any]:
    return {
        "topologyKey": dice.choice([ZONE, HOST]),
        "maxSkew": dice.randint(1, 2),
        "whenUnsatisfiable": dice.choice(["DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"]),
        "labelSelector": _any_selector(dice),
        "minDomains": dice.randint(1, 3),
    }


def _any_ports(dice: random.Random) -> list[dict[str, Any]]:
    if not _seldom(dice):
        return []
    address, protocol = dice.choice(["", "10.0.0.1", "10.0.0.2"]), dice.choice(["TCP", "TCP", "UDP"])
    return [{"containerPort": 80, "hostPort": 80, "hostIP": address, "protocol": protocol}]


def named(one: objects.Pod, name: str, on: str = "") -> objects.Pod:
    meta = msgspec.structs.replace(one.metadata, name=name, uid=name)
    return msgspec.structs.replace(one, metadata=meta, spec=msgspec.structs.replace(one.spec, node_name=on))


class BinderMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self.binder = Binder(self.cluster)
        self.views = NodeScoresCache(self.cluster, default_profile())
        self.world = slow_model.World()
        self.probes = [any_pod(random.Random(number)) for number in range(8)]
        """Asked about again and again, so that what is known of nodes is repaired and not always new."""
        self.made = 0
        self.now_s = 0.0

    @initialize(seed=SEEDS)
    def some_nodes_and_pods(self, seed: int) -> None:
        dice = random.Random(seed)
        for name in NODES[: dice.randint(1, 6)]:
            self.put(any_node(name, dice))
        for _ in range(dice.randrange(12)):
            self.put_pod(any_pod(dice), dice.choice(NODES))

    @rule(name=st.sampled_from(NODES), seed=SEEDS)
    def node_comes_or_changes(self, name: str, seed: int) -> None:
        self.put(any_node(name, random.Random(seed)))

    @rule(name=st.sampled_from(NODES))
    def node_goes(self, name: str) -> None:
        self.cluster.node_gone(name)
        self.world.nodes.pop(name, None)

    @rule(name=st.sampled_from(NODES), seed=SEEDS)
    def another_scheduler_binds(self, name: str, seed: int) -> None:
        self.put_pod(any_pod(random.Random(seed)), name)

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data(), how=st.sampled_from(["ends", "is deleted", "terminates", "moves to another app"]))
    def something_happens_to_a_pod(self, data: st.DataObject, how: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.world.pods)))
        one = self.world.pods[key]
        if how in {"ends", "is deleted"}:
            del self.world.pods[key]
            if how == "ends":
                self.cluster.pod_set(msgspec.structs.replace(one, status=objects.PodStatus(phase="Failed")))
            self.cluster.pod_gone(key)
            return
        change: dict[str, Any] = (
            {"deletion_timestamp": "now"}
            if how == "terminates"
            else {"labels": {"app": "web" if one.metadata.labels["app"] == "db" else "db"}}
        )
        changed = msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, **change))
        self.world.pods[key] = changed
        self.cluster.pod_set(changed)

    @rule(seed=SEEDS)
    def every_node_is_judged_as_a_plain_loop_judges_it(self, seed: int) -> None:
        dice = random.Random(seed)
        for one in [*self.probes, *(any_pod(dice) for _ in range(4))]:
            self.judge(one)

    def judge(self, one: objects.Pod) -> None:
        need = self.views.need(one, Group("g", (Member(one),)))
        view = self.views.of(need)
        view.refresh()
        found = {name for name, row in self.cluster.nodes.row.items() if view.fits()[row]}
        expected = {name for name, home in self.world.nodes.items() if slow_model.fits(self.world, one, home)}
        assert found == expected
        for name, row in self.cluster.nodes.row.items():
            assert (view.check(row, ()) is None) == (name in expected), name
        self.compare_reasons(view, expected)
        # What was repaired bit by bit is what comes out of working everything out at once.
        anew = NodeScores(need, self.cluster, default_profile())
        anew.refresh()
        assert (view.ranked == anew.ranked).all()

    @rule(
        seed=SEEDS,
        size=st.integers(1, 4),
        alike=st.booleans(),
        priority=st.integers(0, 2),
        within=st.sampled_from([None, None, Within("zone"), Within("node", "Required")]),
        lost=st.booleans(),
    )
    def a_cycle(self, seed: int, size: int, alike: bool, priority: int, within: Within | None, lost: bool) -> None:
        self.made += 1
        dice = random.Random(seed)
        members = [any_pod(random.Random(seed) if alike else dice) for _ in range(size)]
        gang = tuple(Member(named(one, f"g{self.made}-{i}")) for i, one in enumerate(members))
        rival = Group("rival", (Member(named(members[0], f"r{self.made}")),), priority=1)
        outcome = self.binder.schedule([Group("gang", gang, priority, within=within), rival], self.now_s)
        self.replay(outcome)
        self.check_whole_groups(outcome, {"gang": len(gang), "rival": 1})
        if "rival" in {refusal.group for refusal in outcome.refusals}:
            self.check_refused_with_cause(rival.members[0].pod)
        self.settle(outcome, lost)

    def compare_reasons(self, view: NodeScores, fit: set[str]) -> None:
        """Nodes are counted by the reasons that each gives; for each resource that one lacks, it counts."""
        counted = view.reasons()
        single = {no: count for no, count in counted.items() if no.plugin != "resources"}
        verdicts = [view.check(row, ()) for name, row in self.cluster.nodes.row.items() if name not in fit]
        by_one = Counter(no for no in verdicts if no is not None)
        assert single == {no: count for no, count in by_one.items() if no.plugin != "resources"}
        assert all(counted[no] >= count for no, count in by_one.items())

    def replay(self, outcome: Outcome) -> None:
        """In the order of the bindings, each pod fits where it went; so nothing is ever overbooked."""
        for binding in outcome.bindings:
            home = self.world.nodes[binding.node]
            assert slow_model.fits(self.world, binding.pod, home), binding
            assert len(binding.gpus) == slow_model.requests(binding.pod).get(GPU, 0)
            bound = named(binding.pod, binding.pod.metadata.name, binding.node)
            bound.metadata.annotations = dict(binding.annotations)
            self.world.pods[binding.key] = bound

    def check_whole_groups(self, outcome: Outcome, sizes: dict[str, int]) -> None:
        bound = Counter(binding.group for binding in outcome.bindings)
        refused = {refusal.group for refusal in outcome.refusals}
        assert {group: sizes[group] for group in bound} == dict(bound)
        assert bound.keys() | refused == set(sizes)
        assert not bound.keys() & refused

    def check_refused_with_cause(self, one: objects.Pod) -> None:
        """Room only shrinks in a cycle, so no node takes the pod afterwards either."""
        if not slow_model.terms(one, "pod_affinity") and not one.spec.topology_spread_constraints:
            assert not any(slow_model.fits(self.world, one, home) for home in self.world.nodes.values())

    def settle(self, outcome: Outcome, lost: bool) -> None:
        """The bindings arrive, or none of them does and their time runs out."""
        for binding in outcome.bindings:
            if lost:
                del self.world.pods[binding.key]
            else:
                self.cluster.pod_set(self.world.pods[binding.key])
        if lost:
            self.now_s += 61.0
            assert set(self.cluster.tick(self.now_s)) == {binding.key for binding in outcome.bindings}
        assert not self.cluster.assumed

    @invariant()
    def the_books_are_right(self) -> None:
        check_cluster(self.cluster)

    def put_pod(self, one: objects.Pod, on: str) -> None:
        self.made += 1
        bound = named(one, f"x{self.made}", on)
        self.cluster.pod_set(bound)
        self.world.pods[f"{bound.metadata.namespace}/{bound.metadata.name}"] = bound

    def put(self, home: objects.Node) -> None:
        self.cluster.node_set(home)
        self.world.nodes[home.metadata.name] = home


TestBinder = BinderMachine.TestCase
TestBinder.settings = settings(max_examples=examples(25), stateful_step_count=20, deadline=None)
