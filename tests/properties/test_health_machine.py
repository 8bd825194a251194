"""Anything may happen to GPUs, in any order: the guard rail holds, humans are obeyed, all can become well."""

import json

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batuta.core.health import HealthStateMachine, from_plain, to_plain
from batuta.core.health_record import BurnIn, Mend, PutBack, RestartJob, State, TakeOut, Target
from batuta.core.health_rules import Action, Finding, Source
from batuta.gpu.health.rules import read_rules
from tests.support.examples import examples

RULES = read_rules()
LIMITS = RULES.limits
NODES = {"a0": (4, "a"), "a1": (4, "a"), "a2": (4, "a"), "a3": (4, "a"), "b0": (2, "b"), "b1": (2, "b")}
APPLICATION, RESET, AT_IDLE, REBOOT, REPLACE = (13, 31), (46, 95), (63,), (79,), (54,)
nodes = st.sampled_from(sorted(NODES))
some = st.builds(lambda node, k: Target(node, k % NODES[node][0]), nodes, st.integers(0, 3))
gpus = st.one_of(st.just(Target("a0", 0)), st.sampled_from([Target("a0", 1), Target("b0", 0)]), some)
"""Now and then any; mostly the same few, for errors that repeat are what matters."""
jobs = st.sampled_from([f"job-{k}" for k in range(4)])
codes = st.sampled_from((*APPLICATION, *RESET, *AT_IDLE, *REBOOT, *REPLACE))


class Cluster:
    """Obeys orders, and knows nothing of rules: what is closed here is what jobs would feel."""

    def __init__(self) -> None:
        self.out: set[Target] = set()
        self.cordoned_by_humans: set[str] = set()
        self.to_mend: dict[Target, Action] = {}
        self.burning: set[Target] = set()

    def obey(self, orders) -> None:
        for order in orders:
            match order:
                case TakeOut(target=target):
                    self.out.add(target)
                case PutBack(target=target):
                    assert target.gpu >= 0 or target.node not in self.cordoned_by_humans
                    self.out.remove(target)
                case Mend(target=target, remedy=remedy):
                    assert target in self.out
                    self.to_mend[target] = remedy
                    self.burning.discard(target)
                case BurnIn(target=target):
                    assert target in self.out
                    self.to_mend.pop(target, None)
                    self.burning.add(target)


class HealthMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.book = HealthStateMachine(RULES)
        self.cluster = Cluster()
        self.now_s = 1e6
        self.told: list[tuple[float, Target, int, str]] = []
        self.passed_s: dict[Target, float] = {}

    @initialize()
    def begin(self) -> None:
        for name, (count, pool) in NODES.items():
            self.book.add_node(name, count, pool)

    def happens(self, name: str, *values):
        """Tells the book and one that was written down and read again: both order the same."""
        twin = from_plain(RULES, json.loads(json.dumps(to_plain(self.book))))
        orders = getattr(self.book, name)(*values)
        assert getattr(twin, name)(*values) == orders
        assert to_plain(twin) == to_plain(self.book)
        self.cluster.obey(orders or [])
        return orders or []

    @rule(target_gpu=gpus, code=codes, job=jobs)
    def something_is_found(self, target_gpu: Target, code: int, job: str) -> None:
        self.now_s += 61.0
        finding = Finding(self.now_s, target_gpu.node, Source.XID, code, "text", gpu=target_gpu.gpu, jobs=(job,))
        orders = self.happens("found", finding)
        taken = [order.target for order in orders if isinstance(order, TakeOut)]
        if code in APPLICATION:
            self.told.append((self.now_s, target_gpu, code, job))
            recent = {
                whose
                for when, where, what, whose in self.told
                if (where, what) == (target_gpu, code) and self.now_s - when <= LIMITS.within_s
            }
            assert len(recent) >= LIMITS.jobs or not taken
            assert taken in ([], [target_gpu])
            assert not any(isinstance(order, Mend) for order in orders) or len(recent) >= LIMITS.jobs
        elif code in AT_IDLE:
            assert not taken
        else:
            wanted = Target(target_gpu.node) if code in REBOOT else target_gpu
            assert taken in ([], [wanted])
            assert self.book.look(wanted).state is State.ILL

    @precondition(lambda self: self.cluster.to_mend)
    @rule(data=st.data())
    def something_is_mended(self, data) -> None:
        target = data.draw(st.sampled_from(sorted(self.cluster.to_mend)))
        self.now_s += 1.0
        assert self.happens("mended", target, self.now_s, "ann") == [BurnIn(target)]

    @rule(target_gpu=gpus, whole=st.booleans(), code=st.sampled_from((*RESET, *REPLACE)))
    def something_is_found_and_repaired_at_once(self, target_gpu: Target, whole: bool, code: int) -> None:
        self.something_is_found(target_gpu, 79 if whole else code, "job-0")
        target = Target(target_gpu.node) if whole else target_gpu
        if target in self.cluster.to_mend:
            self.happens("mended", target, self.now_s, "ann")
            self.cluster.burning.remove(target)
            self.happens("burnt_in", target, True, "", self.now_s)
            self.passed_s[target] = self.now_s

    @precondition(lambda self: self.cluster.burning)
    @rule(data=st.data(), passed=st.booleans())
    def a_burn_in_ends(self, data, passed: bool) -> None:
        target = data.draw(st.sampled_from(sorted(self.cluster.burning)))
        self.now_s += 1.0
        self.cluster.burning.remove(target)
        orders = self.happens("burnt_in", target, passed, "17 wrong bits", self.now_s)
        assert bool(orders) is not passed
        if passed:
            self.passed_s[target] = self.now_s

    @rule(target_gpu=gpus, whole=st.booleans(), passed=st.booleans())
    def somebody_tells_of_a_burn_in_that_nobody_ordered(self, target_gpu: Target, whole: bool, passed: bool) -> None:
        target = Target(target_gpu.node) if whole else target_gpu
        if target not in self.cluster.burning:
            assert not self.happens("burnt_in", target, passed, "", self.now_s)

    @rule(node=nodes)
    def a_human_cordons(self, node: str) -> None:
        self.happens("cordoned", node, "ann", self.now_s)
        self.cluster.cordoned_by_humans.add(node)

    @rule(node=nodes)
    def a_human_uncordons(self, node: str) -> None:
        target, was_theirs = Target(node), node in self.cluster.cordoned_by_humans
        was_out = target in self.cluster.out
        self.cluster.cordoned_by_humans.discard(node)
        # There is one switch: it opens for both.
        self.cluster.out.discard(target)
        self.happens("uncordoned", node, "ann", self.now_s)
        assert (target in self.cluster.out) == (was_theirs and was_out)
        if target not in self.cluster.out:
            self.cluster.to_mend.pop(target, None)
            self.cluster.burning.discard(target)

    @rule(seconds=st.sampled_from((1.0, 600.0, 1_800.0, 7_200.0, 90_000.0, 700_000.0)), idle=st.sets(gpus))
    def time_passes(self, seconds: float, idle: set[Target]) -> None:
        self.now_s += seconds
        for order in self.happens("passes", self.now_s, sorted(idle)):
            assert not isinstance(order, RestartJob)
            if isinstance(order, PutBack):
                assert self.now_s - self.passed_s[order.target] >= LIMITS.probation_s
                self.told = [one for one in self.told if one[1] != order.target]

    @invariant()
    def orders_and_book_agree(self) -> None:
        out = set(self.book.out)
        # A node that its human keeps closed is not put back; nobody feels the difference.
        kept = {one for one in self.cluster.out - out if one.node in self.cluster.cordoned_by_humans}
        self.cluster.out -= {one for one in kept if one.gpu < 0}
        assert self.cluster.out == out
        before = set(self.cluster.out), dict(self.cluster.to_mend), set(self.cluster.burning)
        self.cluster.obey(self.book.standing())
        assert (self.cluster.out, self.cluster.to_mend, self.cluster.burning) == before

    @invariant()
    def the_guard_rail_holds(self) -> None:
        for pool in ("a", "b"):
            closed = {
                (node, gpu)
                for node, (count, its) in NODES.items()
                for gpu in range(count)
                if its == pool and {Target(node), Target(node, gpu)} & self.cluster.out
            }
            total = sum(count for count, its in NODES.values() if its == pool)
            assert len(closed) <= LIMITS.share * total or len({node for node, _ in closed}) == 1

    def teardown(self) -> None:
        """Whatever happened: once all is mended, all comes back."""
        for _ in range(40):
            for target in sorted(self.cluster.to_mend):
                self.happens("mended", target, self.now_s)
            for target in sorted(self.cluster.burning):
                self.cluster.burning.remove(target)
                self.happens("burnt_in", target, True, "", self.now_s)
            self.now_s += LIMITS.longest_probation_s
            self.happens("passes", self.now_s, [Target(n, k) for n, (c, _) in NODES.items() for k in range(c)])
            self.orders_and_book_agree()
            self.the_guard_rail_holds()
        states = {record.state for record in self.book.records.values()}
        assert not self.cluster.out
        assert states <= {State.HEALTHY}, states


TestHealth = HealthMachine.TestCase
TestHealth.settings = settings(max_examples=examples(40), stateful_step_count=30)
