"""What is true of every World after every event, and of every plan: computed anew, then compared."""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from batuta.core.cluster import Node, Operator, Placement, Requirement
from batuta.core.job import DesiredState, Job, JobId, Spread
from batuta.core.job_table import JobTable, Phase
from batuta.core.layout import UNCOUNTED, Card, Layout
from batuta.core.node_table import ROOMY, NodeRequirements, wishes_of
from batuta.core.plan import Migrate, Plan, Preempt, Resize, Start, Stop
from batuta.core.quota import FlavorResource
from batuta.core.reason import Reason
from batuta.core.world import ForeignUsage, World
from batuta.quota.tree import QuotaTree
from batuta.quota.workload import demand

WITH_GPUS = (Phase.STARTING, Phase.RUNNING, Phase.RESIZING)
WITHOUT_PLACEMENT = (Phase.WAITING, Phase.STOPPING)
RUNNING, BROKEN = Phase.RUNNING, Phase.BROKEN
WHY_IT_WAITS = {
    *(Reason.QUEUE_MISSING, Reason.QUEUE_LEAVES, Reason.EXCEEDS_QUOTA, Reason.NO_MATCHING_FLAVOR),
    *(Reason.BEHIND_ANOTHER, Reason.KEPT_FOR_ANOTHER, Reason.QUOTA_SHORT_OF_CPUS, Reason.QUOTA_SHORT_OF_PODS),
    *(Reason.QUOTA_SHORT_OF_MEMORY, Reason.PUSHED_ASIDE, Reason.RECLAIMED, Reason.SHARED_OUT),
    *(Reason.QUOTA_CUT, Reason.QUEUE_DRAINED, Reason.EXCEEDS_REST, Reason.REST_EXHAUSTED),
    *(Reason.WAITING_FOR_GPUS, Reason.EXCEEDS_CLUSTER, Reason.NO_ACCEPTED_TYPE, Reason.QUEUE_HELD),
    *(Reason.QUOTA_EXHAUSTED, Reason.FRAGMENTED, Reason.TOPOLOGY_UNMET, Reason.NO_MATCHING_NODE),
    *(Reason.SHORT_OF_CPU_OR_MEMORY, Reason.HELD_BACK),
    *(Reason.WAITING_FOR_CPU, Reason.WAITING_FOR_MEMORY, Reason.EXCEEDS_CPU_OR_MEMORY),
    *(Reason.IN_TRIAL, Reason.OUT_OF_MEMORY),
    *(Reason.PARKED, Reason.PARKED_IDLE, Reason.CANCELLING, Reason.EVICTED, Reason.RESTART_BACKOFF),
}
"""The reasons that make sense for a job without GPUs."""
PHASES = {int(phase) for phase in Phase}
RUN = tuple(DesiredState).index(DesiredState.RUN)
NOBODY = ForeignUsage()
ANYONE = Job("anyone", 0.0, tolerations=("*",))
"""It would take whatever is open."""
REMEMBERED = 5_000
"""Jobs beyond which it is time to begin anew: most of them are over."""


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """What follows from a job alone. A job never changes, so it is found once and not after every event."""

    job: Job  # held, so that no other job gets its `id()`
    key: tuple[float, int, JobId]
    columns: tuple[int, ...]
    legal: list[int]
    speeds: list[float]
    wishes: NodeRequirements
    alone: dict[tuple[int, int, ForeignUsage], tuple[Node, int | None]] = field(default_factory=dict)
    """What it could have of a node by itself: by the node's `id()`, its GPUs that are well (-1 where only CPUs
    count), and what others use."""


_facts: dict[int, Facts] = {}


def facts_of(job: Job) -> Facts:
    found = _facts.get(id(job))
    if found is None:
        if len(_facts) >= REMEMBERED:
            _facts.clear()
        found = _facts[id(job)] = Facts(
            job,
            (job.submit_s, job.sequence, job.id),
            (job.size, job.min, job.max, job.gpus_per_replica or 1, job.cpu_only, job.priority),
            list(legal_sizes(job)),
            [job.curve.at(n) for n in range(job.max + 2)],
            wishes_of(job),
        )
    return found


def check_invariants(
    world: World,
    submitted: Collection[JobId] | None = None,
    changed: Collection[JobId] = (),
    as_planned: bool = True,
) -> None:
    """Everything that holds between any two events.

    `submitted` names all jobs that ever were: none may be missing. `changed` names the jobs whose users asked
    for other sizes after they got their GPUs, or that were found at another size: theirs may not be legal.
    `as_planned` is false once a backend has told what no plan said: jobs found somewhere, nodes that have
    changed or are used by others. Then a node or a card may be overfull, but no GPU has two jobs.
    """
    check_table(world.jobs)
    check_counters(world.jobs)
    check_nodes(world)
    check_layout(world, as_planned)
    check_reach(world)
    check_gangs(world, changed, as_planned)
    check_avoided(world)
    if submitted is not None:
        check_nobody_lost(world, submitted)


# ---------------------------------------------------------------------------------------- the job table


def check_table(jobs: JobTable) -> None:
    """Rows are dense, sorted, and every list and dict agrees about them."""
    facts = [facts_of(job) for job in jobs.jobs]
    keys = [own.key for own in facts]
    assert jobs.n == len(jobs.ids) == len(jobs.jobs) == len(jobs.placements) == len(keys)
    assert keys == sorted(keys)
    assert jobs.ids == [job.id for job in jobs.jobs]
    assert jobs.key_of == dict(zip(jobs.ids, keys, strict=True))
    assert [jobs.row(job) for job in jobs.ids] == list(range(jobs.n))
    stored = jobs.stored_columns()
    told = [stored[f"i.{name}"].tolist() for name in ("size", "min", "max", "step", "cpu_only", "priority")]
    assert list(zip(*told, strict=True)) == [own.columns for own in facts]
    assert stored["i.queue"].tolist() == [jobs.queues[job.namespace, job.queue] for job in jobs.jobs]
    legal, speed = jobs.legal_sizes(), jobs.speed()
    for row, own in enumerate(facts):
        assert legal.of(row).tolist() == own.legal
        assert speed.row(row, own.job.max + 1).tolist() == own.speeds
    assert jobs.submit_s.tolist() == [job.submit_s for job in jobs.jobs]
    assert all(left_s >= 0 for left_s in jobs.remaining_s.tolist())
    for job, attained, service in zip(
        jobs.jobs, jobs.attained_gpu_s.tolist(), jobs.service_gpu_s.tolist(), strict=True
    ):
        assert not job.cpu_only or attained == 0, f"{job.id} has used GPUs"
        assert attained >= service >= 0
    assert all(map(math.isfinite, jobs.anchor_s.tolist()))


def check_counters(jobs: JobTable) -> None:
    """What is counted as events come in is what one finds by looking at all jobs."""
    phases = Counter(jobs.phase.tolist())
    assert phases.keys() <= PHASES
    assert jobs.moving == phases[Phase.STARTING] + phases[Phase.RESIZING]
    assert jobs.broken == phases[Phase.BROKEN]
    assert jobs.picky == sum(job.share is not None or bool(job.gpu_types) for job in jobs.jobs)
    assert jobs.sharing == sum(job.share is not None for job in jobs.jobs)
    assert jobs.type_lists == Counter(job.gpu_types for job in jobs.jobs)
    assert jobs.irregular == sum(job.sizes is not None or job.gpus_per_replica > 1 for job in jobs.jobs)
    assert jobs.elastic == sum(job.max > job.min for job in jobs.jobs)
    with_gpus = [job for job in jobs.jobs if not job.cpu_only]
    assert jobs.cpu_only == jobs.n - len(with_gpus)
    assert jobs.total_max == sum(job.max for job in with_gpus)
    assert jobs.unsaved == {
        job.id
        for job in jobs.jobs
        if job.is_lost_by_a_stop or (job.keeps_size_until_saved and job.id not in jobs.checkpoints)
    }
    assert jobs.checkpoints.keys() <= set(jobs.ids)
    assert jobs.beside.cpus_milli == sum(job.size * job.cpus_milli_per_gpu for job in with_gpus)
    assert jobs.beside.memory_mib == sum(job.size * job.memory_mib_per_gpu for job in with_gpus)
    assert jobs.short == {job.id for gpus, job in zip(jobs.held.tolist(), jobs.jobs, strict=True) if gpus != job.max}
    assert jobs.held_back == sum(
        wish != RUN or not_before_s > 0
        for wish, not_before_s in zip(jobs.wish.tolist(), jobs.not_before_s.tolist(), strict=True)
    )
    assert (jobs.in_motion() is None) == (jobs.moving == 0)
    assert (jobs.is_broken() is None) == (jobs.broken == 0)


# ----------------------------------------------------------------------------------- nodes and their GPUs


def check_nodes(world: World) -> None:
    """Health, usable nodes and capacity follow from what is lost, cordoned, ill and used by others."""
    capacity = [0] * len(world.nodes.types)
    missing = {}
    for i, node in enumerate(world.nodes.nodes):
        lost, cordoned = bool(world.lost >> i & 1), bool(world.cordoned >> i & 1)
        whole = (1 << node.gpus) - 1
        bad = (world.ill.get(i, 0) | world.others.get(i, NOBODY).gpus) & whole
        if bad:
            missing[i] = bad
        assert world.layout.healthy[i] == (0 if lost else whole & ~bad), node.name
        assert bool(world.layout.usable >> i & 1) == (not lost and not cordoned), node.name
        if node.gpus and not lost and not cordoned:
            capacity[world.nodes.type_of[i]] += world.layout.free[i].bit_count()
    cards = set[tuple[int, int]]()
    for job, placement in zip(world.jobs.jobs, world.jobs.placements, strict=True):
        own = gpus_of(world, placement)
        if own and (job.share is None or own[0] not in cards):
            capacity[world.nodes.type_of[own[0][0]]] += len(own)
        cards.update(own if job.share else ())
    assert world.capacity() == capacity
    assert world.missing() == missing
    assert world.layout.usable & ~world.nodes.all == 0
    assert world.nodes.largest == max((node.gpus for node in world.nodes.nodes), default=0)


def check_avoided(world: World) -> None:
    """Only living jobs avoid nodes, only nodes that there are, and not for ever."""
    for job, (nodes, until_s) in world.avoided.items():
        assert job in world.jobs
        assert nodes
        assert not nodes & ~world.nodes.all
        assert until_s > world.now_s


def check_layout(world: World, as_planned: bool = True) -> None:
    """The layout is what the placements make of it: to the last GPU, millicore and mebibyte."""
    anew = layout_from_placements(world, as_planned)
    layout = world.layout
    assert layout.free == anew.free
    assert layout.cards == anew.cards
    assert layout.cpus_milli == anew.cpus_milli
    assert layout.memory_mib == anew.memory_mib
    assert layout.buckets[: len(anew.buckets)] == anew.buckets
    assert not any(layout.buckets[len(anew.buckets) :])
    assert layout.total_free == sum(free.bit_count() for free in layout.free)
    assert not as_planned or min(layout.cpus_milli, default=0) >= 0
    assert not as_planned or min(layout.memory_mib, default=0) >= 0
    for (i, gpu), card in layout.cards.items():
        promised = world.nodes.nodes[i].gpu_compute_percent
        assert not as_planned or card.booked_percent(promised) <= 100
        assert not as_planned or card.memory_mib <= world.nodes.nodes[i].gpu_memory_mib
        assert not layout.free[i] >> gpu & 1


def layout_from_placements(world: World, as_planned: bool = True) -> Layout:
    """Counts every GPU by hand. A GPU that two jobs have, or that is ill or lost, is found here."""
    anew = Layout(world.nodes)
    taken: Counter[tuple[int, int]] = Counter()
    for i, node in enumerate(world.nodes.nodes):
        others = world.others.get(i, NOBODY)
        anew.free.append(0)
        anew.cpus_milli.append((node.cpus_milli or UNCOUNTED) - others.cpus_milli)
        anew.memory_mib.append((node.memory_mib or UNCOUNTED) - others.memory_mib)
    for job, placement in zip(world.jobs.jobs, world.jobs.placements, strict=True):
        for i, gpu in gpus_of(world, placement):
            there = world.layout.healthy[i] if as_planned else world.sound(i)
            assert there >> gpu & 1, f"{job.id} is on a GPU that is ill or lost"
            assert not job.cpu_only, f"{job.id} is CPU-only and holds a GPU"
            anew.cpus_milli[i] -= job.cpus_milli_per_gpu
            anew.memory_mib[i] -= job.memory_mib_per_gpu
            if job.share is None:
                taken[i, gpu] += 1
            else:
                card = anew.cards.get((i, gpu), Card(0, 0, 0))
                soft = job.share.compute_percent if job.share.soft else 0
                anew.cards[i, gpu] = Card(
                    card.compute_percent + job.share.compute_percent - soft,
                    card.memory_mib + job.share.memory_mib,
                    card.shares + 1,
                    card.soft_percent + soft,
                )
        for span in placement.spans if placement is not None and job.cpu_only else ():
            i = world.nodes.index[span.node]
            assert not world.lost >> i & 1, f"{job.id} is on a node that is lost"
            anew.cpus_milli[i] -= job.cpus_milli_per_gpu
            anew.memory_mib[i] -= job.memory_mib_per_gpu
    assert max(taken.values(), default=0) <= 1, "a GPU belongs to two jobs"
    assert not taken.keys() & anew.cards.keys(), "a GPU is shared and somebody's own"
    anew.buckets = [0] * (world.nodes.largest + 1)
    for i in range(len(world.nodes.nodes)):
        for gpu in range(world.nodes.nodes[i].gpus):
            if world.layout.healthy[i] >> gpu & 1 and (i, gpu) not in taken and (i, gpu) not in anew.cards:
                anew.free[i] |= 1 << gpu
        anew.buckets[anew.free[i].bit_count()] |= 1 << i
    return anew


def check_reach(world: World) -> None:
    """Whoever wants more than the open nodes could give to it is marked: found by trying every node."""
    marked = []
    open_gpus = most_by_kind(world, ANYONE)
    for job in world.jobs.jobs:
        reach = world.caches.reach[facts_of(job).wishes]
        if job.cpu_only:
            kinds = [-1, *range(len(world.nodes.types))]
            assert reach == [most_replicas(world, job, kinds)], job.id
            marked.append(False)
            continue
        most = most_by_kind(world, job)
        assert reach == most, job.id
        wanted = [job.size if most[kind] == gpus else job.max for kind, gpus in enumerate(open_gpus)]
        marked.append(not most or any(most[kind] < wanted[kind] for kind in range(len(most))))
    assert world.jobs.is_narrow.tolist() == marked
    assert world.jobs.narrow == sum(marked)


def suits(job: Job, node: Node) -> bool:
    """Whether a node's labels and taints suit a job, asked one by one."""
    labels = dict(node.labels)
    terms = job.node_terms or ((),)
    return (
        set(job.node_labels) <= set(node.labels)
        and any(all(meets(labels, one) for one in term) for term in terms)
        and all("*" in job.tolerations or tolerated(job, taint) for taint in node.taints)
    )


def meets(labels: dict[str, str], wanted: Requirement) -> bool:
    value = labels.get(wanted.key)
    match wanted.operator:
        case Operator.IN:
            return value in wanted.values
        case Operator.NOT_IN:
            return value not in wanted.values
        case Operator.EXISTS:
            return value is not None
        case Operator.ABSENT:
            return value is None
        case Operator.ABOVE:
            return value is not None and value.isdigit() and int(value) > int(wanted.values[0])
        case Operator.BELOW:
            return value is not None and value.isdigit() and int(value) < int(wanted.values[0])


def tolerated(job: Job, taint: str) -> bool:
    """A toleration is the taint itself, or the taint without its effect, or without its value as well."""
    bare = taint.partition(":")[0]
    return bool({taint, bare, bare.partition("=")[0]} & set(job.tolerations))


def most_replicas(world: World, job: Job, kinds: Sequence[int]) -> int:
    """How many replicas a CPU-only job could have with nobody else on the open nodes of these types."""
    by_node: dict[int, int] = {}
    known = facts_of(job).alone
    for i, (node, kind) in enumerate(zip(world.nodes.nodes, world.nodes.type_of, strict=True)):
        if kind in kinds and world.layout.usable >> i & 1:
            others = world.others.get(i, NOBODY)
            found = known.get((id(node), -1, others))
            if found is None:
                found = known[id(node), -1, others] = (node, replicas_of_node(job, node, others))
            if found[1] is not None:
                by_node[i] = found[1]
    return in_one_place(world, job, by_node)


def replicas_of_node(job: Job, node: Node, others: ForeignUsage) -> int | None:
    """How many replicas a CPU-only job could have on one node with nobody else there; None if it does not suit."""
    if not suits(job, node):
        return None
    each = [ROOMY]
    if node.cpus_milli and job.cpus_milli_per_gpu:
        each.append(max(node.cpus_milli - others.cpus_milli, 0) // job.cpus_milli_per_gpu)
    if node.memory_mib and job.memory_mib_per_gpu:
        each.append(max(node.memory_mib - others.memory_mib, 0) // job.memory_mib_per_gpu)
    return min(each)


def most_alone(world: World, job: Job, kind: int) -> int:
    """How many GPUs of a type a job could have with nobody else on the open nodes."""
    return most_by_kind(world, job)[kind]


def most_by_kind(world: World, job: Job) -> list[int]:
    """By type: how many GPUs a job could have with nobody else on the open nodes."""
    by_kind: list[dict[int, int]] = [{} for _ in world.nodes.types]
    known = facts_of(job).alone
    for i, (node, kind) in enumerate(zip(world.nodes.nodes, world.nodes.type_of, strict=True)):
        if kind >= 0 and world.layout.usable >> i & 1:
            healthy, others = world.layout.healthy[i], world.others.get(i, NOBODY)
            found = known.get((id(node), healthy, others))
            if found is None:
                found = known[id(node), healthy, others] = (node, most_of_node(job, node, healthy, others))
            if found[1] is not None:
                by_kind[kind][i] = found[1]
    return [in_one_place(world, job, by_node) for by_node in by_kind]


def most_of_node(job: Job, node: Node, healthy_gpus: int, others: ForeignUsage) -> int | None:
    """How many GPUs of one node a job could have with nobody else there; None if the node does not suit it."""
    if not suits(job, node):
        return None
    cpus_milli, memory_mib = node.cpus_milli - others.cpus_milli, node.memory_mib - others.memory_mib
    healthy = [gpu for gpu in range(node.gpus) if healthy_gpus >> gpu & 1]
    if job.share is not None and job.share.memory_mib > node.gpu_memory_mib:
        healthy = []
    counts = [len(healthy)]
    if job.topology.single_numa and node.numa:
        counts = [sum(node.numa[gpu] == own for gpu in healthy) for own in set(node.numa)]
    return max(
        n
        for n in range(max(counts) + 1)
        if n % job.gpus_per_replica == 0
        and (not node.cpus_milli or n * job.cpus_milli_per_gpu <= max(cpus_milli, 0))
        and (not node.memory_mib or n * job.memory_mib_per_gpu <= max(memory_mib, 0))
    )


def in_one_place(world: World, job: Job, by_node: dict[int, int]) -> int:
    """The sum over all nodes, or over those of the best node or rack that a job has to stay within."""
    within = job.topology.within if job.topology.required else Spread.ANY
    if within is Spread.NODE:
        return max(by_node.values(), default=0)
    if within is Spread.RACK:
        racks: Counter[str] = Counter()
        for i, gpus in by_node.items():
            racks[world.nodes.nodes[i].rack] += gpus
        return max(racks.values(), default=0)
    return sum(by_node.values())


# ------------------------------------------------------------------------------------------------ gangs


def check_gangs(world: World, changed: Collection[JobId] = (), as_planned: bool = True) -> None:
    """A job has all the GPUs of a legal size, or none; only one that was just broken has a rest of them."""
    jobs = world.jobs
    columns = (jobs.held, jobs.lost_gpus, jobs.rate, jobs.gpu_type, jobs.first_start_s)
    for row, (job, placement, held, lost, rate, kind, first_start_s) in enumerate(
        zip(jobs.jobs, jobs.placements, *(column.tolist() for column in columns), strict=True)
    ):
        phase = jobs.phase_of(row)
        assert held == (0 if placement is None else placement.units), job.id
        assert (phase in WITHOUT_PLACEMENT) == (placement is None), job.id
        assert (phase is BROKEN) == (lost > 0), job.id
        assert phase is RUNNING or rate == 0, f"{job.id} makes progress {phase.name}"
        if placement is None:
            assert kind == -1
            continue
        own = gpus_of(world, placement)
        if job.cpu_only:
            assert not own
            assert kind == -1
            assert phase not in WITH_GPUS or job.id in changed or len(placement.spans) == job.size
            continue
        kinds = {world.nodes.type_of[i] for i, _ in (own if as_planned else own[:1])}
        assert kinds == {kind}, f"{job.id} has GPUs of two types"
        assert not math.isnan(first_start_s)
        if phase in WITH_GPUS:
            check_gang(job, placement, size_is_current=job.id not in changed)


def check_gang(job: Job, placement: Placement, size_is_current: bool = True) -> None:
    if job.cpu_only:
        assert len(placement.spans) == job.size or not size_is_current
        assert not any(span.gpus for span in placement.spans), f"{job.id} is CPU-only and holds a GPU"
        return
    if size_is_current:
        assert placement.size in legal_sizes(job), job.id
    assert placement.size % job.gpus_per_replica == 0, job.id
    for worker in placement.workers(job.gpus_per_replica):
        assert len(worker.gpus) == job.gpus_per_replica, f"a replica of {job.id} straddles nodes"
    assert all(span.gpus for span in placement.spans)


def check_nobody_lost(world: World, submitted: Collection[JobId]) -> None:
    living, past = set(world.jobs.ids), set(world.past)
    assert not living & past
    assert living | past == set(submitted)


def check_quota(world: World, frozen: Collection[JobId] = ()) -> None:
    """After a plan: no queue has more than it may have by itself, no cohort more than its sum.

    Jobs in `frozen` were in transition, so they kept what they had; with more than the quota in their hands
    nobody else may have anything of it.
    """
    tree = QuotaTree(world.effective_quota)
    for only_frozen in (True, False):
        for row, job in enumerate(world.jobs.jobs):
            way = world.effective_quota.way(job.namespace, job.queue)
            queue = tree.queues.get(way.cluster_queue) if way is not None else None
            gpus = int(world.jobs.held[row])
            if queue is None or (job.id in frozen) is not only_frozen:
                continue
            for resource, flavor in world.flavors.get(job.id, ()):
                queue.add({tree.number(FlavorResource(flavor, resource)): demand(job, resource, gpus)})
        if only_frozen:
            cells = range(len(tree.frs))
            before = {(name, k): node.left(k) for name, node in tree.queues.items() for k in cells}
    for name, node in tree.queues.items():
        for cell in node.usage:
            least = min(0, before.get((name, cell), 0))
            assert node.left(cell) >= least, f"queue {name} has too much of {tree.frs[cell]}"


def type_of(world: World, row: int) -> str:
    """The GPU type that a job has; empty for none."""
    kind = int(world.jobs.gpu_type[row])
    return world.nodes.types[kind] if kind >= 0 else ""


# ------------------------------------------------------------------------------------------------ plans


def check_plan(world: World, plan: Plan, frozen: bool = True) -> None:
    """A plan is complete and consistent, seen from the World that it was made from.

    `frozen` says that jobs in transition are left alone.
    """
    jobs = world.jobs
    assert plan.world_version == world.version
    assert [decision.job for decision in plan.decisions] == jobs.ids
    after = dict(zip(jobs.ids, jobs.gpus().tolist(), strict=True))
    commanded = Counter(command.job for command in plan.commands)
    assert max(commanded.values(), default=0) <= 1, "two commands for one job"
    for command in plan.commands:
        row = jobs.row(command.job)
        job, held = jobs.jobs[row], jobs.placements[row]
        phase = Phase(int(jobs.phase[row]))
        assert command.reason.sentence(command.evidence)
        wish = jobs.wish_of(row)
        in_transition = phase in (Phase.STARTING, Phase.RESIZING) and wish is DesiredState.RUN
        assert not (frozen and in_transition), f"{job.id} is in transition"
        match command:
            case Stop():
                assert wish is DesiredState.CANCEL
                assert phase is not Phase.STOPPING, f"{job.id} is being stopped already"
                after[job.id] = 0
                continue
            case Preempt():
                assert held is not None, f"{job.id} has nothing to lose"
                after[job.id] = 0
                continue
            case Start():
                assert held is None, f"{job.id} has started already"
            case Resize():
                assert held is not None
                assert phase is Phase.BROKEN or command.placement != held, f"{job.id} restarts for nothing"
            case Migrate():
                assert held is not None
                assert command.placement.size == held.size
                assert command.placement != held
        check_gang(job, command.placement)
        check_reachable(world, job, held, command.placement)
        after[job.id] = command.placement.size
    for decision in plan.decisions:
        assert decision.gpus == after[decision.job]
        assert str(decision)
        row = jobs.row(decision.job)
        if jobs.wish_of(row) is not DesiredState.RUN:
            assert decision.gpus == 0, f"{decision.job} shall not run now, but: {decision}"
        elif jobs.not_before_s[row] > plan.time_s:
            assert decision.gpus <= jobs.held[row], f"{decision.job} shall not get more, but: {decision}"
            left_alone = jobs.phase[row] != Phase.RUNNING and jobs.held[row] > 0
            assert not (left_alone and commanded[decision.job]), f"{decision.job} is to be left alone"
        if jobs.jobs[row].cpu_only:
            runs = decision.reason in (Reason.FULL_SIZE, Reason.IN_TRANSITION)
            assert runs or decision.reason in WHY_IT_WAITS, f"{decision.job} waits, but: {decision}"
        elif decision.gpus == 0:
            assert decision.reason in WHY_IT_WAITS, f"{decision.job} waits, but: {decision}"
        else:
            assert decision.reason not in (Reason.QUOTA_EXHAUSTED, Reason.NO_ACCEPTED_TYPE), str(decision)
        numbers = dict(decision.evidence)
        if decision.reason is Reason.QUOTA_REACHED:
            assert numbers["gpus"] == decision.gpus > 0
    assert {job for job, _ in plan.retiered} <= set(jobs.ids)


def check_reachable(world: World, job: Job, held: Placement | None, after: Placement) -> None:
    """New GPUs lie on nodes that are open to the job; each GPU occurs once."""
    own = gpus_of(world, after)
    assert len(own) == len(set(own)), f"{job.id} gets a GPU twice"
    suited = world.layout.usable & world.nodes.matching(job)
    if job.id in world.avoided:
        suited &= ~world.avoided[job.id].nodes
    if job.cpu_only:
        nodes = {world.nodes.index[span.node] for span in after.spans}
        assert all(suited >> i & 1 for i in nodes), f"{job.id} goes to a node that does not suit it"
    kept = set(gpus_of(world, held))
    for i, gpu in own:
        assert (i, gpu) in kept or world.layout.healthy[i] >> gpu & 1, f"{job.id} gets an ill GPU"
        assert (i, gpu) in kept or suited >> i & 1, f"{job.id} goes to a node that does not suit it"
    accepted = {*dict(job.gpu_types), *(world.nodes.nodes[i].gpu_type for i, _ in kept)}
    for i, _ in own:
        assert not job.gpu_types or world.nodes.nodes[i].gpu_type in accepted


def check_beside(world: World, before: Layout) -> None:
    """After a plan: no node lacks more CPU or memory than it did before."""
    for name in ("cpus_milli", "memory_mib"):
        for now, then in zip(getattr(world.layout, name), getattr(before, name), strict=True):
            assert now >= min(then, 0), f"a plan takes {name} that is not there"


def fingerprint(world: World) -> tuple[object, ...]:
    """All of a World as one value, for "nothing was changed"."""
    jobs, layout, nodes = world.jobs, world.layout, world.nodes
    return (
        *(world.version, world.now_s, world.lost, world.cordoned, dict(world.ill), world.capacity()),
        *(dict(world.others), dict(world.avoided), world.forgotten, dict(world.usage)),
        *(dict(world.idle), dict(world.loads)),
        *(world.quota, dict(world.flavors), dict(world.past)),
        *(tuple(jobs.ids), tuple(jobs.jobs), tuple(jobs.placements), dict(jobs.key_of), dict(jobs.queues)),
        *(jobs.picky, jobs.irregular, jobs.moving, jobs.broken, jobs.narrow, str(world.caches.reach)),
        *(jobs.elastic, frozenset(jobs.short), jobs.total_max, jobs.beside, jobs.sharing, dict(jobs.type_lists)),
        *(jobs.held_back, dict(world.progress), world.policy),
        # As bytes, because NaN is not equal to itself.
        tuple((name, column.tobytes()) for name, column in jobs.stored_columns().items()),
        *(jobs.curves.flat.tobytes(), dict(jobs.curves.places)),
        *(jobs.size_sets.matrix.shape, jobs.size_sets.matrix.tobytes(), dict(jobs.size_sets.places)),
        *(tuple(layout.free), tuple(layout.healthy), tuple(layout.cpus_milli), tuple(layout.memory_mib)),
        *(tuple(layout.buckets), dict(layout.cards), layout.usable, layout.total_free),
        *(tuple(nodes.nodes), dict(nodes.index), tuple(nodes.types), tuple(nodes.type_of)),
        *(tuple(nodes.rack_of), dict(nodes.models)),
        *(tuple(nodes.by_type), dict(nodes.by_rack), dict(nodes.by_label), dict(nodes.by_size)),
        dict(nodes.by_key),
        *(nodes.tainted, nodes.all, nodes.largest),
    )


def gpus_of(world: World, placement: Placement | None) -> list[tuple[int, int]]:
    """(node, GPU) of every GPU of a placement, in worker order."""
    if placement is None:
        return []
    index = world.nodes.index
    return [(index[span.node], gpu) for span in placement.spans for gpu in span.gpus]


def legal_sizes(job: Job) -> tuple[int, ...]:
    return job.sizes or tuple(range(job.min, job.max + 1, job.gpus_per_replica or 1))
