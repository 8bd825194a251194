"""The children of a job are put right when others change them, but nobody fights."""

from typing import Any

import msgspec
import pytest

from batuta.backends.kube.binder import Cluster
from batuta.backends.kube.jobtypes import BUILT_IN
from batuta.backends.kube.jobtypes.job_type import JOB, Run
from batuta.backends.kube.jobtypes.job_type import Observed as Seen
from batuta.backends.kube.objects import Batch
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.context import ReconcileContext
from batuta.backends.kube.operator.replica_controller import ECHO_S, Children
from batuta.backends.kube.operator.workqueue import WriteQueue, Written
from tests.support.unified_jobs import unified_job

UJ, KIND, RUN = unified_job(job_type="Job"), BUILT_IN["Job"], Run(2)
NAME = f"{UJ.id}//patch/jobs/{UJ.metadata.name}"


class Rig:
    """Children that are brought to a run, and the keys of what was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.writes = WriteQueue(lambda asked: self.asked.extend(key for key, _ in asked))
        site = ReconcileContext(Cluster(), self.writes, ObjectCache().owners(), lambda event: None, lambda party: None)
        self.children = Children(site, ObjectCache())

    def look(self, now_s: float, **theirs: Any) -> None:
        """The informers show the Job, with what others have made of it; all that is asked for is done."""
        (manifest,) = (child.manifest for child in KIND.children(UJ, RUN) if child.kind is JOB)
        shown = manifest | {"spec": manifest["spec"] | theirs}
        before = len(self.asked)
        self.children.bring(KIND, UJ, RUN, Seen((), ((JOB, msgspec.convert(shown, Batch)),)), now_s)
        self.writes.send()
        for key in self.asked[before:]:
            self.writes.heard(Written(key, None), now_s)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_child_that_is_as_it_was_written_is_left_alone(rig):
    rig.look(0.0)
    assert NAME not in rig.asked
    assert rig.children.due_s == float("inf")


def test_a_patch_that_somebody_undoes_again_and_again_is_made_from_time_to_time(rig):
    """Given a program that suspends what we resume, ten times a second, there is one patch in ten seconds."""
    for tenth in range(10 * int(ECHO_S)):
        rig.look(tenth / 10, suspend=tenth % 2 == 0)
    assert rig.asked.count(NAME) == 1
    rig.look(ECHO_S - 0.1, suspend=True)
    assert rig.children.due_s == ECHO_S
    rig.look(ECHO_S, suspend=True)
    assert rig.asked.count(NAME) == 2
