"""Journals in which anything may happen, with real plans: a random walk through all types of events."""

from random import Random
from typing import Any

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node, Operator, Requirement, placement_of
from batuta.core.curve import SpeedCurve, amdahl_curve, linear_curve
from batuta.core.decide import decide
from batuta.core.job import DesiredState, Job, JobKind, JobState, Progress, Share, Spread, Topology
from batuta.core.reason import Reason
from batuta.core.trial import TrialMeasurement, TrialOutcome, TrialPlan
from batuta.core.world import World
from batuta.engine.profile import profile_for
from batuta.spec.kueue.change import merge
from batuta.spec.kueue.files import queue_change

NODES: tuple[dict[str, Any], ...] = (
    {"gpus": 4, "gpu_type": "a"},
    {"gpus": 8, "gpu_type": "a", "rack": "r1", "numa": (0, 0, 0, 0, 1, 1, 1, 1), "nvlink": (0, 0, 1, 1) * 2},
    {"gpus": 4, "gpu_type": "b", "labels": (("zone", "ü"),), "cpus_milli": 16_000, "memory_mib": 4000},
    {"gpus": 2, "gpu_type": "b", "taints": ("spot",), "zone": "z"},
    {"gpus": 3, "rack": "r1", "labels": (("gb", "80"),), "taints": ("spot", "team=a:NoSchedule")},
)
JOBS: tuple[dict[str, Any], ...] = (
    {},
    {"size": 2, "max": 8},
    {"size": 2, "max": 8, "restartable": False},
    {"size": 4, "min": 2, "max": 6, "gpus_per_replica": 2, "kind": JobKind.TORCH_ELASTIC},
    {"size": 2, "max": 8, "sizes": (1, 2, 4, 8), "checkpoint_interval_s": 600.5},
    {"share": Share(memory_mib=400, compute_percent=30)},
    {"size": 2, "max": 4, "gpu_types": (("b", 2.0), ("a", 0.5)), "cpus_milli_per_gpu": 1000},
    {
        "size": 2,
        "min": 2,
        "max": 2,
        "topology": Topology(Spread.RACK, required=True),
        "tolerations": ("spot",),
    },
    {"node_labels": (("zone", "ü"),), "user": "ada \N{OWL}", "name": 'a "name"\n'},
    {"size": 40, "min": 40, "max": 40},
    {
        "max": 3,
        "node_terms": (
            (Requirement("zone", Operator.IN, ("ü",)),),
            (Requirement("gb", Operator.ABOVE, ("40",)),),
        ),
        "tolerations": ("*",),
    },
)
QUOTAS: tuple[tuple[tuple[str, int], ...], ...] = ((), (("*", 4),), (("a", 0), ("*", 6)))


class Walk:
    """A World on which events happen by chance; all that happened is remembered."""

    def __init__(self, seed: int, policy: str = "fifo") -> None:
        self.chance = Random(seed)
        self.rules = profile_for(policy)
        self.world = World()
        self.now_s = 0.0
        self.events: list[ev.Event] = []
        self.submitted = 0

    def go(self, steps: int) -> "Walk":
        for _ in range(steps):
            self.step()
        return self

    def happens(self, event: ev.Event) -> None:
        apply(self.world, event)
        self.events.append(event)

    def step(self) -> None:
        chance, world = self.chance, self.world
        if chance.random() < 0.5:
            self.now_s += chance.expovariate(0.01)
        if len(world.nodes.nodes) < 3:
            self.join()
            return
        about_jobs = (self.submit, self.submit, self.plan, self.plan, self.report, self.end, self.interrupt)
        about_others = (self.change, self.join, self.harm, self.heal, self.set_queue, self.wait, self.wish)
        told = (
            self.node_changes,
            self.others_use,
            self.gpus_are_used,
            self.be_found,
            self.be_refused,
            self.forget,
        )
        luck = chance.random()
        chance.choice(about_jobs if luck < 0.75 else about_others if luck < 0.9 else told)()

    def join(self) -> None:
        known = len(self.world.nodes.nodes)
        if known < 7:
            self.happens(ev.NodeAdded(self.now_s, Node(f"n{known}", **self.chance.choice(NODES))))

    def wait(self) -> None:
        self.happens(ev.TimePassed(self.now_s))

    def wish(self) -> None:
        """Users, and what is told of them or of times."""
        now_s, job = self.now_s, self._anyone()
        told = (
            ev.JobWished(now_s, job, self.chance.choice(list(DesiredState))),
            ev.TransitionTimed(now_s, job, 2, 1.5, None, 0.25),
            ev.JobCheckpointed(now_s, job, self.chance.choice((None, now_s, now_s / 2))),
            ev.TrialMeasured(now_s, job, TrialMeasurement(f"{job}-t1", 1, TrialOutcome.FAILED, detail="no")),
            ev.JobHeldUp(
                now_s,
                job,
                Reason.HANG,
                (("silent_s", 9.0), ("usual_s", 1.0)),
                (1,),
                ("n0",),
                ("n0", "n1"),
                now_s + 40,
            ),
            ev.PolicySet(now_s, self.rules.policy.name),
            ev.JobInterrupted(now_s, job, not_before_s=now_s + 60, exit_code=3, detail="exit code 3"),
        )
        self.happens(self.chance.choice(told))

    def set_queue(self) -> None:
        name, quota = self.chance.choice(("default", "batch")), self.chance.choice(QUOTAS)
        change = queue_change(name, dict(quota), weight=0.1, held=self.chance.random() < 0.2)
        self.happens(ev.QuotaSet(self.now_s, merge(self.world.quota, change)))

    def harm(self) -> None:
        node = self.chance.choice(self.world.nodes.nodes)
        kind = self.chance.choice((ev.NodeLost, ev.NodeCordoned))
        if self.chance.random() < 0.5:
            gpu = self.chance.randrange(node.gpus)
            self.happens(ev.GpuFailed(self.now_s, node.name, gpu))
            self.happens(ev.HealthChanged(self.now_s, node.name, gpu, "ill", "Xid 79"))
        else:
            self.happens(kind(self.now_s, node.name))

    def heal(self) -> None:
        for node in self.world.nodes.nodes:
            for kind in (ev.NodeReturned, ev.NodeUncordoned):
                self.happens(kind(self.now_s, node.name))
            self.happens(ev.GpuRepaired(self.now_s, node.name, 0))
            self.happens(ev.ActionTaken(self.now_s, "node.mended", f"node {node.name}", actor="ana"))

    def node_changes(self) -> None:
        """Anything about a node may be another one than before, with jobs on it or without."""
        node = self.chance.choice(self.world.nodes.nodes)
        self.happens(ev.NodeChanged(self.now_s, Node(node.name, **self.chance.choice(NODES))))

    def others_use(self) -> None:
        node = self.chance.choice(self.world.nodes.nodes)
        gpus = tuple(gpu for gpu in range(node.gpus) if self.chance.random() < 0.2)
        cpus_milli = self.chance.choice((0, 500, 9000))
        self.happens(ev.OthersUse(self.now_s, node.name, gpus, cpus_milli, cpus_milli // 8))

    def gpus_are_used(self) -> None:
        node = self.chance.choice(self.world.nodes.nodes)
        gpus = tuple(self.chance.choice((None, 0.0, 0.01, 0.9)) for _ in range(node.gpus))
        self.happens(ev.GpusUsed(self.now_s, node.name, gpus, ((self._anyone(), 0.4),)))

    def be_found(self) -> None:
        """With a part of what it has, or anywhere."""
        jobs, job, chance = self.world.jobs, self._anyone(), self.chance
        held = jobs.placements[jobs.row(job)] if job in jobs else None
        if held is not None and chance.random() < 0.5:
            placement = held._replace(spans=held.spans[:1])
        else:
            node = chance.choice(self.world.nodes.nodes)
            gpus = sorted(chance.sample(range(node.gpus), chance.randint(1, min(4, node.gpus))))
            placement = placement_of((node.name, gpu) for gpu in gpus)
        wait_s = chance.choice((0.0, 30.0))
        self.happens(ev.JobFound(self.now_s, job, placement, chance.random() < 0.7, self.now_s + wait_s, detail="seen"))

    def be_refused(self) -> None:
        node = self.chance.choice(self.world.nodes.nodes)
        self.happens(ev.JobInterrupted(self.now_s, self._anyone(), "binder", self.now_s + 5, avoid=(node.name,)))

    def forget(self) -> None:
        self.happens(ev.JobForgotten(self.now_s, self.chance.choice(list(self.world.past) or ["nobody"])))

    def _job(self, name: str) -> Job:
        shape = self.chance.choice(JOBS)
        largest = shape.get("max", 1)
        curve = self.chance.choice((linear_curve(largest), amdahl_curve(largest, 0.1)))
        # Some are tried out first, and wait for somebody to measure or to start them.
        shape["trial"] = TrialPlan((1,), 60.0, 10.0) if name.endswith("7") else None
        return Job(name, self.now_s, curve=curve, queue=self.chance.choice(("default", "batch")), **shape)

    def submit(self) -> None:
        self.happens(ev.JobSubmitted(self.now_s, self._job(f"j{self.submitted}")))
        self.submitted += 1

    def change(self) -> None:
        if self.world.jobs.n:
            known = self.chance.choice(self.world.jobs.jobs)
            wanted = self._job(known.id)
            if known.share is None and wanted.share is None and known.gpus_per_replica == wanted.gpus_per_replica:
                self.happens(ev.JobChanged(self.now_s, wanted))

    def _anyone(self) -> str:
        return self.chance.choice(self.world.jobs.ids or list(self.world.past) or ["nobody"])

    def report(self) -> None:
        curve = SpeedCurve((0.0, 1.0, self.chance.uniform(1, 2))) if self.chance.random() < 0.3 else None
        restart_s = self.chance.choice((None, 12.25))
        left_s = self.chance.uniform(0, 1e6)
        progress = self.chance.choice((None, Progress(0.5, 10, 20, loss=0.25)))
        self.happens(ev.JobProgressed(self.now_s, self._anyone(), left_s, curve, restart_s, progress=progress))

    def end(self) -> None:
        states = (JobState.SUCCEEDED, JobState.FAILED, JobState.FAILED_SETUP, JobState.CANCELLED)
        self.happens(ev.JobEnded(self.now_s, self._anyone(), self.chance.choice(states)))

    def interrupt(self) -> None:
        self.happens(ev.JobInterrupted(self.now_s, self._anyone()))

    def plan(self) -> None:
        plan = decide(self.world, self.now_s, self.rules)
        self.happens(ev.Planned(self.now_s, plan))
        for command in plan.commands:
            if self.chance.random() < 0.8:
                self.happens(ev.JobStarted(self.now_s, command.job))
