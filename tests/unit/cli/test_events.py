"""Every event of the journal has a sentence."""

import json

import pytest

from batuta.apitypes.resources import Event
from batuta.cli.events import event_sentences
from batuta.core import event as ev
from batuta.core.cluster import Node
from batuta.core.job import DesiredState, Job, JobState, Progress
from batuta.core.quota import ClusterQueue, Quota
from batuta.core.reason import Reason
from batuta.core.trial import TrialMeasurement, TrialOutcome
from batuta.store.codec import EVENT_TYPES, encode
from tests.support.quotas import short
from tests.support.worlds import at

JOB = Job("7", 0.0, size=2, min=1, max=4, name="net", user="ana")
EVENTS = [
    (ev.JobSubmitted(1.0, JOB), "job 7 (net) is submitted by ana: 2 GPUs (1–4)"),
    (ev.JobStarted(1.0, "7"), "job 7 runs"),
    (
        ev.JobProgressed(1.0, "7", 5.0, progress=Progress(0.5, 50, 100, loss=0.25)),
        "job 7 reports 50%, step 50, loss 0.25",
    ),
    (ev.JobProgressed(1.0, "7", 5.0), "job 7 reports progress"),
    (ev.JobInterrupted(1.0, "7", detail="node lost"), "job 7 lost its GPUs and waits again (node lost)"),
    (
        ev.JobFound(1.0, "7", at("n:01 m:3"), detail="node o is full"),
        "job 7 is found to have 3 GPUs of n, m (node o is full)",
    ),
    (ev.JobFound(1.0, "7", at("n:0")), "job 7 is found to have 1 GPU of n"),
    (ev.JobFound(1.0, "7", at("")), "job 7 is found to have no GPUs"),
    (ev.JobForgotten(1.0, "7"), "job 7 is no longer kept in mind"),
    (ev.JobEnded(1.0, "7", JobState.FAILED, exit_code=3), "job 7 is over: FAILED (exit code 3)"),
    (ev.JobEnded(1.0, "7", JobState.SUCCEEDED, exit_code=0), "job 7 is over: SUCCEEDED"),
    (ev.JobChanged(1.0, JOB), "job 7 now asks for 2 GPUs (1–4), queue default"),
    (ev.JobHeldUp(1.0, "7", Reason.HANG), "job 7: it is held up by some ranks"),
    (
        ev.JobWished(1.0, "7", DesiredState.EVICT, cause="held-up"),
        "job 7 leaves its GPUs for others, because of what holds it up",
    ),
    (ev.JobWished(1.0, "7", DesiredState.PARK), "job 7 is to be parked"),
    (ev.JobWished(1.0, "7", DesiredState.EVICT), "job 7 has to leave its GPUs, for a node is drained"),
    (
        ev.JobWished(1.0, "7", DesiredState.EVICT, cause="health"),
        "job 7 has to leave its GPUs, because of an error there",
    ),
    (ev.JobWished(1.0, "7-t2", DesiredState.CANCEL, cause="trial"), "job 7-t2 is ended: it is measured"),
    (
        ev.TransitionTimed(1.0, "7", 2, 0.5, None, 1.5),
        "job 7 changed to 2 GPUs: checkpoint 0.5 s, start 1.5 s",
    ),
    (
        ev.TrialMeasured(1.0, "7", TrialMeasurement("7-t2", 2, TrialOutcome.OUT_OF_MEMORY)),
        "job 7 was tried out with 2 GPUs: out of memory",
    ),
    (
        ev.TrialMeasured(
            1.0, "7", TrialMeasurement("7-t1", 1, TrialOutcome.MEASURED, unit="steps", units_per_s=12.345)
        ),
        "job 7 was tried out with 1 GPU: 12.3 steps/s",
    ),
    (ev.PolicySet(1.0, "fifo"), "policy fifo decides from now on"),
    (ev.NodeAdded(1.0, Node("n", 4)), "node n joins with 4 GPUs"),
    (ev.NodeChanged(1.0, Node("n", 4)), "node n has changed: 4 GPUs"),
    (
        ev.OthersUse(1.0, "n", (0, 2), 1500, 2048),
        "others use 2 GPUs, 1.5 CPUs and 2.0 GiB of node n",
    ),
    (ev.NodeLost(1.0, "n"), "node n is lost"),
    (ev.NodeReturned(1.0, "n"), "node n is back"),
    (ev.NodeCordoned(1.0, "n"), "node n is cordoned"),
    (ev.NodeUncordoned(1.0, "n"), "node n is in service again"),
    (ev.GpuFailed(1.0, "n", 3), "GPU 3 of node n failed"),
    (ev.GpuFailed(1.0, "n", 3, reason="Xid 79"), "GPU 3 of node n failed (Xid 79)"),
    (ev.JobCheckpointed(1.0, "7"), "job 7 saves when it is asked"),
    (ev.JobCheckpointed(1.0, "7", 1.0), "job 7 has saved a checkpoint"),
    (ev.GpuRepaired(1.0, "n", 3), "GPU 3 of node n works again"),
    (ev.HealthChanged(1.0, "n", None, "ill", "Xid 79"), "node n is ill (Xid 79)"),
    (ev.ActionTaken(1.0, "token.create", "ana (user)", actor="ben"), "a token is made for ana (user)"),
    (ev.ActionTaken(1.0, "something.else"), "something.else"),
    (ev.HealthChanged(1.0, "n", 3, "burn-in"), "GPU 3 of node n is in its burn-in"),
    (
        ev.HealthChanged(1.0, "n", 3, "alert", "too many"),
        "GPU 3 of node n is ill and stays in service (too many)",
    ),
    (ev.GpusUsed(1.0, "n", (0.5, None, 0.0)), "GPUs of node n are used: 50%, –, 0%"),
    (ev.GpusUsed(1.0, "n", ()), "how busy GPUs of node n are is not known any more"),
    (ev.QuotaSet(1.0, short(("q", {}))), "quota is set: 1 cluster queue"),
    (ev.QuotaSet(1.0, Quota(cluster_queues=(ClusterQueue("q"),))), "quota is set: 1 cluster queue"),
]


@pytest.mark.parametrize(("event", "sentence"), EVENTS, ids=lambda value: type(value).__name__)
def test_sentences(event, sentence):
    data = json.loads(encode(event))
    assert event_sentences(Event(1, data["type"], data)) == [sentence]


def test_there_is_a_sentence_for_every_event():
    assert {type(event).__name__ for event, _ in EVENTS} >= EVENT_TYPES.keys() - {"Planned", "TimePassed"}


def test_a_plan_is_its_commands():
    commands = [{"type": "Start", "job": "7", "sentence": "starts with 2 GPUs"}, {"type": "Stop", "job": "8"}]
    assert event_sentences(Event(1, "Planned", {"commands": commands})) == [
        "job 7 starts with 2 GPUs",
        "job 8 Stop",
    ]


def test_a_plan_tells_of_idle_jobs():
    said = event_sentences(Event(1, "Planned", {"commands": [], "found_idle": ["7"]}))
    assert said == ["job 7 holds GPUs and does not use them"]


def test_what_is_not_known_has_at_least_its_name():
    assert event_sentences(Event(1, "Invented", {})) == ["Invented"]
    assert event_sentences(Event(1, "JobEnded", {})) == ["JobEnded"]
