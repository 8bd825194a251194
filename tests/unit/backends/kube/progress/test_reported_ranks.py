"""Slow ranks and hangs of jobs on a cluster, from what replica 0 says for all."""

import json
import math

from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.context import ReconcileContext
from batuta.backends.kube.operator.workqueue import WriteQueue
from batuta.backends.kube.progress.log_lines import LogReport, ReportLine, parse_report
from batuta.backends.kube.progress.log_reader import LogSubscriptions
from batuta.backends.kube.progress.trainer_session import TrainerSession
from batuta.core.cluster import Span
from batuta.core.job import Job
from batuta.engine.stragglers.rank_watch import HeldUp, RankRules
from batuta.prediction.hang import HangReport, HangRules
from batuta.prediction.straggler import StragglerReport

ID = "team-a/resnet"
JOB = Job(ID, submit_s=0.0, size=4, min=4, max=4, work_s=3600.0)
PLACES = tuple(Span(f"node-{k}", (0, 1)) for k in range(4))
BEGAN_S = 1000.0


class Place:
    """A job on four nodes since second 1000; nothing is written down but what holds it up."""

    def __init__(self) -> None:
        self.found: list[HeldUp] = []
        listening = LogSubscriptions(lambda changes: None)
        listening.ranks = RankRules(hang=HangRules(after_s=600.0))
        listening.on_held_up = self.found.append
        site = ReconcileContext(
            Cluster(),
            WriteQueue(lambda posted: None),
            ObjectCache().owners(),
            lambda event: None,
            lambda party: None,
            listening=listening,
        )
        self.talk = TrainerSession(site, ID)
        self.talk.began(JOB, 0, PLACES, BEGAN_S)

    def steps(self, count: int, *own_s: float) -> None:
        """Replica 0 reports a step every two seconds."""
        for step in range(1, count + 1):
            text = json.dumps({"step": step, "rank": 0, "replica": 0, "own_s": list(own_s)})
            said = parse_report(ReportLine(BEGAN_S + 2 * step, text.encode()))
            assert said is not None
            self.talk.hear(LogReport(ID, "uid-0", (said,)), BEGAN_S + 2 * step, is_alive=True)


def test_a_slow_rank_that_replica_0_has_gathered_is_told_with_its_node():
    place = Place()
    place.steps(20, *[1.0] * 5, 2.0, *[1.0] * 2)
    (found,) = place.found
    assert isinstance(found.found, StragglerReport)
    assert (found.job, found.found.ranks, found.nodes) == (ID, (5,), ("node-2",))
    assert found.gang == {"node-0", "node-1", "node-2", "node-3"}


def test_a_job_is_looked_at_again_when_its_silence_would_be_a_hang():
    place = Place()
    assert place.talk.watch({}, BEGAN_S) == BEGAN_S + 600.0
    place.steps(10, 1.0)
    assert place.talk.watch({}, BEGAN_S + 600.0) == BEGAN_S + 20.0 + 600.0
    assert place.found == []
    assert place.talk.watch({}, BEGAN_S + 620.0) == math.inf
    (found,) = place.found
    assert isinstance(found.found, HangReport)
    assert (found.found.silent_s, found.nodes) == (600.0, ())


def test_labels_say_when_and_whether_and_nonsense_says_nothing():
    place = Place()
    assert place.talk.watch({"batuta.dev/hang-after": "1h"}, BEGAN_S) == BEGAN_S + 3600.0
    assert place.talk.watch({"batuta.dev/hang-after": "soon"}, BEGAN_S) == BEGAN_S + 3600.0
    assert place.talk.watch({"batuta.dev/hang-after": "off"}, BEGAN_S) == math.inf
    place.talk.watch({"batuta.dev/stragglers": "off"}, BEGAN_S)
    place.steps(30, *[1.0] * 7, 2.0)
    assert place.found == []


def test_a_job_whose_run_is_over_is_not_looked_at():
    place = Place()
    place.steps(10, 1.0)
    place.talk.ended(BEGAN_S + 30.0)
    assert place.talk.watch({}, BEGAN_S + 5000.0) == math.inf
    assert place.found == []
