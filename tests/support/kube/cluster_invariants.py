"""The binder's sums are those that its pods and nodes add up to."""

import numpy as np

from batuta.backends.kube.binder import Cluster

GPU_SUMS = ("held", "sharers", "memory_taken_mib", "compute_taken", "soft_taken", "unnamed", "untouched")


def check_cluster(cluster: Cluster) -> None:
    """Counts everything again from the objects, and raises where a sum differs."""
    again = Cluster()
    again._namespaces = dict(cluster._namespaces)
    for node in cluster._objects.values():
        again.node_set(node)
    for assigned in cluster._assigned.values():
        again._add(assigned)
    for name, row in cluster.nodes.row.items():
        other = again.nodes.row[name]
        for resource, line in cluster.nodes.resources.items():
            free = again.nodes.free[again.nodes.line(resource), other]
            assert cluster.nodes.free[line, row] == free, f"{name}: {resource}"
        for table in GPU_SUMS:
            mine, theirs = getattr(cluster.gpu_table, table)[row], getattr(again.gpu_table, table)[other]
            assert np.sum(mine) == np.sum(theirs), f"{name}: {table}"
        assert cluster.ports.by_row.get(row) == again.ports.by_row.get(other), f"{name}: ports"
        for term, column in cluster.affinity_counts.apart.items():
            assert column[row] == again.affinity_counts.apart[term][other], f"{name}: {term}"
    assert cluster._deadline_s.keys() <= cluster._assigned.keys(), "an assumption without a pod"
    assert sum(map(len, cluster._by_node.values())) == len(cluster._assigned), "a pod on two nodes"
