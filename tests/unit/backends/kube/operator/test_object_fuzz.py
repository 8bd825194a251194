"""Objects that say anything in any field: none of them ends the engine, and none costs another job its turn."""

from functools import partial

import pytest

from batuta.backends.kube.health.controller import HealthController, HealthOptions
from batuta.backends.kube.health.state import StoredState
from batuta.backends.kube.kueue import kinds as kueue
from batuta.backends.kube.operator.quarantine import OBJECTS
from batuta.backends.kube.operator.reconciler import JOBS
from batuta.backends.kube.operator.workqueue import Changed
from batuta.backends.kube.operator_config import Admission, OperatorConfig
from batuta.gpu.health.rules import read_rules
from tests.support.kube.object_fuzz import WATCHED, fields_of, fuzzed, sound_objects
from tests.support.kube.offline_cluster import OfflineCluster, leading, run_jobs

AT_ONCE = 125  # objects of each kind that are there at a time
HEALTH = partial(HealthController, HealthOptions(read_rules(), "batuta"), StoredState())


def show_round(cluster: OfflineCluster, number: int) -> None:
    for kind in WATCHED:
        cluster.show(kind, fuzzed(kind, range(number * AT_ONCE, (number + 1) * AT_ONCE)))


def serve_kueue(cluster: OfflineCluster) -> None:
    for kind in kueue.ALL:
        cluster.inbox.put(Changed(kind, (), kind.version))


@pytest.mark.slow
def test_jobs_are_served_beside_objects_that_say_anything(tmp_path):
    """19,000 objects of all kinds, 2,375 at a time: a sound job runs beside them, and after they are gone."""
    cluster = OfflineCluster(tmp_path)
    with leading(cluster, tmp_path, health=HEALTH) as leader:
        serve_kueue(cluster)
        for number in range(8):
            show_round(cluster, number)
            run_jobs(cluster, leader, [f"beside-{number}"], within_s=120)
            cluster.hide()
            run_jobs(cluster, leader, [f"after-{number}"], within_s=120)
        assert leader.service.running, leader.service.trouble
        troubles = {part: one.why for part, one in leader.assembly.fence.troubles.items()}
    assert troubles.keys() <= {OBJECTS, JOBS}, troubles


@pytest.mark.slow
def test_the_engine_lives_beside_such_objects_where_kueue_admits(tmp_path):
    """4,750 more objects, with Kueue's gate before each job."""
    cluster = OfflineCluster(tmp_path)
    config = OperatorConfig(admission=Admission.KUEUE)
    with leading(cluster, tmp_path, config, HEALTH) as leader:
        serve_kueue(cluster)
        for number in range(8, 10):
            show_round(cluster, number)
            cluster.wait_until_told()
            cluster.hide()
            cluster.wait_until_told()
        assert leader.service.running, leader.service.trouble
        troubles = {part: one.why for part, one in leader.assembly.fence.troubles.items()}
    assert troubles.keys() <= {OBJECTS, JOBS}, troubles


def test_an_operator_that_starts_beside_such_objects_serves_jobs(tmp_path):
    """What one operator has lived with, the next one finds at its start."""
    for start in range(2):
        cluster = OfflineCluster(tmp_path)
        show_round(cluster, 10)
        with leading(cluster, tmp_path, health=HEALTH) as leader:
            run_jobs(cluster, leader, [f"beside-{start}"], within_s=120)
            assert leader.service.running, leader.service.trouble


def test_every_watched_kind_has_a_sound_object_and_fields_to_replace():
    assert sound_objects().keys() == set(WATCHED)
    assert all(len(fields_of(kind)) > 100 for kind in WATCHED)
