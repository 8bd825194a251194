"""The kinds that the operator watches: those of every cluster, and those that only some clusters serve."""

from __future__ import annotations

from typing import Any, Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.client import kinds
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.kueue import kinds as kueue
from batuta.backends.kube.trial.model import TRIAL_RUN
from batuta.backends.kube.unified_job.model import UnifiedJob

UNIFIED_JOB: Final = Kind(names.GROUP, names.VERSION, names.PLURAL, names.KIND, UnifiedJob)
WORKLOAD_GROUP: Final = Kind("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup", objects.Batch)
"""The upstream group; which version is served depends on the cluster."""

ALWAYS: Final[tuple[Kind[Any], ...]] = (
    kinds.NODE,
    kinds.NAMESPACE,
    kinds.PRIORITY_CLASS,
    kinds.JOB,
    UNIFIED_JOB,
    kinds.POD,
)
"""In this order: pods come last, when all that they refer to is there."""
EVERYWHERE: Final[tuple[Kind[Any], ...]] = (
    kinds.NODE,
    kinds.NAMESPACE,
    kinds.PRIORITY_CLASS,
    kinds.NODE_TOPOLOGY,
    kinds.POD,
    *(kind for kind in kueue.ALL if not kind.namespaced),
)
"""Not only where jobs may be: pods of others use nodes up as well."""
IF_SERVED: Final[tuple[Kind[Any], ...]] = (
    kinds.NODE_TOPOLOGY,
    kinds.POD_GROUP,
    kinds.JOB_SET,
    kinds.MPI_JOB,
    WORKLOAD_GROUP,
    TRIAL_RUN,
)
QUOTA: Final[tuple[Kind[Any], ...]] = (kueue.QUEUE_FILES, *kueue.ALL)
"""Where quota comes from, and jobs as Kueue sees them; watched as far as the configuration says."""
ANY_VERSION: Final[tuple[Kind[Any], ...]] = (WORKLOAD_GROUP, *kueue.ALL)
"""Read in whatever version the cluster has, if it does not have the one that we know best."""
