"""What replicas need beside CUDA_VISIBLE_DEVICES: they start when it is there, and with what it says."""

from collections.abc import Mapping

from batuta.backends.local.replica_plan import HostGpus, ReplicaGpus
from batuta.core import event as ev
from tests.support.local_backends import WAITS, Bench


class Recording(HostGpus):
    """Notes who asks, and adds a variable; ready when the test says so."""

    def __init__(self, *, ready: bool = True, trouble: str = "") -> None:
        self.ready = ready
        self.trouble = trouble
        self.replicas: list[ReplicaGpus] = []

    def is_ready(self) -> bool:
        return self.ready

    def inject(self, replica: ReplicaGpus, env: Mapping[str, str]) -> dict[str, str]:
        if self.trouble:
            raise OSError(self.trouble)
        self.replicas.append(replica)
        return {**env, "LENT": f"{replica.node}:{replica.gpus}"}


def test_each_replica_gets_what_its_own_gpus_need(bench: Bench):
    bench.gpu_injector = injector = Recording()
    bench.task("a", 'echo "$LENT has $CUDA_VISIBLE_DEVICES"; exec sleep 1000', sizes=2)
    bench.start("a", "n0:3 n1:1")
    bench.until_logged("a", "n0:(3,) has 3", rank=0)
    bench.until_logged("a", "n1:(1,) has 1", rank=1)
    assert [(replica.job.id, replica.node, replica.gpus) for replica in injector.replicas] == [
        ("a", "n0", (3,)),
        ("a", "n1", (1,)),
    ]
    assert len({replica.run_id for replica in injector.replicas}) == 2
    assert all(replica.folder.is_dir() for replica in injector.replicas)


def test_nobody_starts_before_it_is_ready(bench: Bench):
    # given an injector that is still being made
    bench.gpu_injector = injector = Recording(ready=False)
    bench.task("a", WAITS)
    bench.start("a", "n0:0")
    # when the engine goes on, then the job waits
    bench.idle(0.3)
    assert not bench.folder("a").exists()
    # and starts as soon as it is there, without anything else happening
    injector.ready = True
    bench.backend.wake()
    bench.until_said(ev.JobStarted, "a")


def test_a_job_whose_equipment_cannot_be_had_is_tried_again(bench: Bench):
    bench.gpu_injector = injector = Recording(trouble="no room for limits")
    bench.task("a", WAITS)
    bench.start("a", "n0:0")
    told = bench.until_said(ev.JobInterrupted, "a")
    assert "no room for limits" in told.detail
    injector.trouble = ""
    bench.start("a", "n0:0")
    bench.until_said(ev.JobStarted, "a")
