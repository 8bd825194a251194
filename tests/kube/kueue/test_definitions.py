"""A cluster that gets to know Kueue while an operator runs."""

from typing import Any

from batuta.backends.kube.kueue import kinds
from batuta.backends.kube.operator import informers
from tests.support.kube.kueue import (
    SHORT_FORM,
    cluster_queue,
    flavor,
    hearing,
    knows_kueue,
    nominal,
    queue_names,
    write_files,
)
from tests.support.kube.modules import crds


def test_definitions_that_come_later_are_noticed(bare_cluster, monkeypatch: Any):
    """Given quota from files, when the cluster gets to know Kueue, then its objects are what counts."""
    if knows_kueue(bare_cluster):
        bare_cluster.kubectl("delete", "crd", *(f"{kind.plural}.{kinds.GROUP}" for kind in kinds.ALL))
    monkeypatch.setattr(informers, "LOOK_AGAIN_S", 0.2)
    team = bare_cluster.new_namespace()
    write_files(bare_cluster, team, a=SHORT_FORM)
    with hearing(bare_cluster.kubeconfig_path, team) as heard:
        heard.until(lambda quota: nominal(quota, "team-a") == 4, "the queue of the file")
        bare_cluster.install_crds(crds("kueue"))
        bare_cluster.apply([flavor(), cluster_queue("team-b", 2)])
        heard.until(lambda quota: queue_names(quota) == {"team-b"}, "the queue of the cluster")
    bare_cluster.delete_namespace(team)
