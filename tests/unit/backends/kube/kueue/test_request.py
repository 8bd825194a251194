"""Which queue and priority a UnifiedJob has, in its own words or in those of Kueue."""

import pytest

from batuta.backends.kube import names
from batuta.backends.kube.unified_job.model import with_tolerations
from batuta.backends.kube.unified_job.to_job import read_request
from tests.support.unified_jobs import unified_job

RESERVED = {"key": "reserved", "operator": "Exists"}


def job_of(uj, **classes):
    asked = read_request(uj, {}, classes)
    assert asked.job is not None, asked.faults
    return asked.job


def labelled(label, value, **spec):
    uj = unified_job(**spec)
    uj.metadata.labels[label] = value
    return uj


@pytest.mark.parametrize(("spec", "queue"), [({}, "theirs"), ({"queueName": "own"}, "own")])
def test_the_label_of_kueue_counts_where_the_job_names_no_queue(spec, queue):
    job = job_of(labelled(names.KUEUE_QUEUE_NAME, "theirs", **spec))
    assert (job.namespace, job.queue) == ("team-a", queue)


def test_a_workload_priority_class_is_the_priority_of_the_job():
    uj = labelled(names.KUEUE_PRIORITY_CLASS, "urgent")
    assert job_of(uj, urgent=1000).priority == 1000
    assert job_of(uj).priority == 0


def test_tolerations_are_added_once_and_the_job_itself_stays_as_it_is():
    uj = unified_job(pod={"tolerations": [{"key": "own"}]})
    dressed = with_tolerations(with_tolerations(uj, [RESERVED]), [RESERVED])
    pod = dressed.spec.replica_spec.template["spec"]
    assert pod["tolerations"] == [{"key": "own"}, RESERVED]
    assert uj.spec.replica_spec.template["spec"]["tolerations"] == [{"key": "own"}]
    assert dressed.metadata is uj.metadata
