"""The operator is killed in the middle, and the next one goes on: nothing counts twice, nothing is lost."""

import json
import random
import time

from batuta.backends.kube.health.annotations import NodeNote
from batuta.backends.kube.health.state import KEY
from tests.support.kube.control_plane import wait_until
from tests.support.kube.health import Ward, pool
from tests.support.kube.operator_process import NAMESPACE, OperatorProcess
from tests.support.kube.unified import Jobs


def incidents(ward: Ward, node: str) -> int:
    """How many errors of a node the operators have counted, by what they remember."""
    found = ward.api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/tested-health")
    records = json.loads(found["data"][KEY])["book"]["records"]
    return sum(len(record["incidents"]) for name, _, record in records if name == node)


def test_an_illness_outlives_the_operators(jobs: Jobs, ward: Ward, add_nodes, operator: OperatorProcess):
    """Given operators that are killed at each stage, the job moves, and the node goes from ill to well."""
    nodes = add_nodes(3, pool(jobs.namespace))
    job = jobs.submit("train", replicas=2)
    job.runs_with(2)
    victim = min(node for node, _ in job.places().values())

    (note,) = ward.note(victim, 79)
    operator.kill()
    operator.start()
    assert ward.is_shut(victim) == "Xid-79"
    ward.acknowledges(victim, note)
    wait_until(lambda: {n for n, _ in job.places().values()} == set(nodes) - {victim}, "a move", 30)

    ward.annotate(victim, mended="node")
    pod = ward.burn_in(victim)
    operator.kill()
    ward.ends(pod, "Succeeded")
    operator.forget()  # its journal is lost with its volume; what is known of health is not
    operator.start()
    ward.becomes(victim, "")
    assert ward.taint(victim) is None


def test_each_note_counts_once_whenever_operators_are_killed(
    jobs: Jobs, ward: Ward, add_nodes, operator: OperatorProcess
):
    """Given notes that come while operators are killed at random moments, each is counted, and once."""
    (node,) = add_nodes(1, pool(jobs.namespace))
    chance, noted = random.Random(11), list[NodeNote]()
    for _ in range(2):
        # What is not acknowledged stays in the annotation, as with a real agent.
        noted = ward.note(node, 48, 48, 48, more=noted)
        time.sleep(chance.uniform(0.0, 0.15))
        operator.kill()
        operator.start()
    ward.acknowledges(node, noted[-1])
    assert incidents(ward, node) == 6
