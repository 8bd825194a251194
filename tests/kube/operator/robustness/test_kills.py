"""The operator is killed again and again while gangs compete for too few GPUs, and loses its journal too."""

import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.support.kube.control_plane import wait_until
from tests.support.kube.gang_watch import GangWatch
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import OperatorProcess, grant
from tests.support.kube.pods import Pods, make_gang

GANGS, KILLS = (200, 20) if os.environ.get("CI") else (80, 10)
TIMEOUT_S = 30
WITHIN_S = 600.0
"""A busy machine takes its time; a quiet one a tenth of this."""


def test_no_gang_is_bound_in_part_and_all_finish_however_often_the_operator_is_killed(broken, tmp_path):
    """Given GPUs for a few gangs, when the operator is killed, half the time with its journal, all finish."""
    chance = random.Random(10)
    sizes = {f"gang-{number}": chance.choice((1, 1, 2, 2, 3, 4, 4, 5, 8, 16)) for number in range(GANGS)}
    gpus = {name: chance.choice((1, 1, 2, 4)) for name in sizes}
    told = {"tests.batuta.dev/runs-for": "400ms"}
    nodes = broken.add_nodes(12, NodeShape(gpus=8), "kills")
    pods = Pods(broken, broken.new_namespace())
    operator = OperatorProcess(broken, tmp_path, kubeconfig=grant(broken), gangTimeoutSeconds=TIMEOUT_S)
    made = [pod for name, size in sizes.items() for pod in make_gang(name, size, gpus[name], **told)]
    with _cleared(pods, nodes), GangWatch(pods, sizes) as watch, operator, ThreadPoolExecutor(1) as another:
        making = another.submit(pods.create, *made)
        for _ in range(KILLS):
            # At any moment: mostly while it binds, but also while it starts or looks around.
            if chance.random() < 0.7:
                operator.wait_until_leading()
            time.sleep(chance.uniform(0.0, 1.5))
            operator.kill()
            if chance.random() < 0.5:
                operator.forget()
            operator.start(wait=False)
        making.result()

        def is_done() -> bool:
            operator.check()
            return not watch.unfinished

        wait_until(is_done, "all gangs to finish", WITHIN_S)
        assert watch.doubles == []
        assert all(len(gang.bound) == gang.size for gang in watch.gangs.values())
        # An operator that was killed begins to count anew.
        assert watch.longest_partly_s() < 2 * TIMEOUT_S


@contextmanager
def _cleared(pods: Pods, nodes: list[str]) -> Iterator[None]:
    """Whatever happens, the next test finds neither its pods nor its nodes."""
    try:
        yield
    finally:
        pods.cluster.clear_namespace(pods.namespace)
        pods.cluster.delete_nodes(nodes)
