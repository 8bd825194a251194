"""What the operator may do, and what people may do with UnifiedJobs: the least that works.

The operator reads pods of all namespaces even where it may write in a few only: pods of others use up nodes
too. It reads the logs of pods where jobs are, for the progress that they report. It may not read Secrets,
and may change nodes only where it is to look after their health. No rule has a wildcard.
"""

from __future__ import annotations

from collections.abc import Sequence

from batuta.backends.kube import names
from batuta.backends.kube.install.release import Manifest, Release
from batuta.backends.kube.kueue import kinds as kueue
from batuta.backends.kube.operator_config import Admission, Scheduling

READ = ("get", "list", "watch")
WRITE = ("create", "delete", "patch")
RBAC = "rbac.authorization.k8s.io"

KNOWN_CRDS = (
    f"{names.PLURAL}.{names.GROUP}",
    f"{names.TRIAL_PLURAL}.{names.GROUP}",
    "jobsets.jobset.x-k8s.io",
    "mpijobs.kubeflow.org",
    "noderesourcetopologies.topology.node.k8s.io",
    "podgroups.scheduling.x-k8s.io",
)
"""Whether these are served decides what the operator looks after."""


def _rule(group: str, resources: Sequence[str], verbs: Sequence[str], only: Sequence[str] = ()) -> Manifest:
    rule: Manifest = {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
    return rule | ({"resourceNames": list(only)} if only else {})


EVENTS = (
    _rule("", ("events",), ("create", "patch")),
    _rule("events.k8s.io", ("events",), ("create", "patch")),
)

CLUSTER_RULES = (
    _rule("", ("nodes", "namespaces", "pods"), READ),
    _rule("scheduling.k8s.io", ("priorityclasses",), READ),
    _rule("topology.node.k8s.io", ("noderesourcetopologies",), READ),
    _rule("apiextensions.k8s.io", ("customresourcedefinitions",), ("get",), KNOWN_CRDS),
    # Who asks its API something, and what they may see: the cluster says it.
    _rule("authentication.k8s.io", ("tokenreviews",), ("create",)),
    _rule("authorization.k8s.io", ("subjectaccessreviews",), ("create",)),
)
"""Needed in the whole cluster, wherever jobs may be."""

JOB_RULES = (
    # It makes them too, for trials: each size that is tried out is a UnifiedJob.
    _rule(names.GROUP, (names.PLURAL,), (*READ, "create", "delete", "patch", "update")),
    _rule(names.GROUP, (f"{names.PLURAL}/status",), ("get", "patch", "update")),
    _rule(names.GROUP, (f"{names.PLURAL}/finalizers", f"{names.TRIAL_PLURAL}/finalizers"), ("update",)),
    _rule(names.GROUP, (names.TRIAL_PLURAL,), (*READ, "create", "delete")),
    _rule(names.GROUP, (f"{names.TRIAL_PLURAL}/status",), ("get", "patch")),
    _rule("", ("pods", "services", "configmaps"), WRITE),
    _rule("", ("pods/binding", "pods/eviction"), ("create",)),
    _rule("", ("pods/status",), ("patch",)),
    _rule("", ("pods/log",), ("get",)),
    _rule("", ("persistentvolumeclaims",), READ),
    _rule("batch", ("jobs",), (*READ, *WRITE)),
    _rule("kubeflow.org", ("mpijobs",), (*READ, *WRITE)),
    _rule("jobset.x-k8s.io", ("jobsets",), READ),
    _rule("scheduling.x-k8s.io", ("podgroups",), READ),
    _rule("scheduling.k8s.io", ("workloads", "podgroups"), READ),
    *EVENTS,
)
"""Needed where jobs are."""


def queue_rules(config: Scheduling) -> list[Manifest]:
    """In the whole cluster, for what of Kueue the configuration switches on."""
    if config.admission is Admission.KUEUE:
        return [_rule(kueue.GROUP, ("resourceflavors", "workloadpriorityclasses"), READ)]
    if not config.kueue.read_quota:
        return []
    settings = [kind.plural for kind in kueue.SETTINGS if not kind.namespaced]
    status = [_rule(kueue.GROUP, ("clusterqueues/status",), ("get", "patch"))]
    return [_rule(kueue.GROUP, settings, READ), *(status if config.kueue.show_workloads else ())]


def health_rules(config: Scheduling) -> list[Manifest]:
    """In the whole cluster, where health is looked after; events about nodes are in `default`."""
    if not config.health.enabled:
        return []
    return [_rule("", ("nodes", "nodes/status"), ("patch",)), *EVENTS]


def workload_rules(config: Scheduling) -> list[Manifest]:
    """The same where jobs are."""
    decides = config.admission is Admission.BATUTA
    if decides and not config.kueue.read_quota:
        return []
    local = [_rule(kueue.GROUP, ("localqueues",), READ)] if decides else []
    if decides and not config.kueue.show_workloads:
        return local
    if decides:
        local.append(_rule(kueue.GROUP, ("localqueues/status",), ("get", "patch")))
    return [
        *local,
        _rule(kueue.GROUP, ("workloads",), (*READ, *WRITE)),
        _rule(kueue.GROUP, ("workloads/status",), ("get", "patch")),
    ]


def operator_rights(release: Release) -> list[Manifest]:
    """The operator's roles and bindings: for the whole cluster, or for the namespaces that were named."""
    everywhere = not release.values.namespaces
    config = release.values.config
    job_rules = [*JOB_RULES, *workload_rules(config)]
    rules = [
        *CLUSTER_RULES,
        *queue_rules(config),
        *health_rules(config),
        *(job_rules if everywhere else ()),
    ]
    found = [
        _role(release, release.operator, None, rules),
        _binding(release, release.operator, None),
        _role(release, release.operator, release.namespace, own_rules(release)),
        _binding(release, release.operator, release.namespace),
    ]
    for namespace in release.values.namespaces:
        name = f"{release.fullname}-jobs"
        found += [_role(release, name, namespace, job_rules), _binding(release, name, namespace)]
    return found


def own_rules(release: Release) -> list[Manifest]:
    """In its own namespace: its Lease, its queues, what it remembers of health and burn-ins, events about it.

    A create cannot ask for a name.
    """
    group = "coordination.k8s.io"
    files = [_rule("", ("configmaps",), READ, (release.queue_files,))]
    health = [
        _rule("", ("configmaps", "pods"), ("create",)),
        _rule("", ("configmaps",), ("get", "update"), (release.health_memory,)),
        _rule("", ("pods",), ("delete",)),
    ]
    return [
        _rule(group, ("leases",), ("create",)),
        _rule(group, ("leases",), ("get", "patch", "update"), (release.operator,)),
        *(files if release.values.config.admission is Admission.BATUTA else ()),
        *(health if release.values.config.health.enabled else ()),
        *EVENTS,
    ]


def user_roles(release: Release) -> list[Manifest]:
    """Who may view or edit a namespace may view or edit jobs and trials in it; who edits sees them too."""
    jobs, trials, scale = names.PLURAL, names.TRIAL_PLURAL, f"{names.PLURAL}/scale"
    view = [
        _rule(names.GROUP, (jobs, trials), READ),
        _rule(names.GROUP, (f"{jobs}/status", scale, f"{trials}/status"), ("get",)),
    ]
    edit = [
        *view,
        _rule(names.GROUP, (jobs, trials), ("create", "delete", "deletecollection", "patch", "update")),
        _rule(names.GROUP, (scale,), ("patch", "update")),
    ]
    return [_user_role(release, "view", view), _user_role(release, "edit", edit)]


def _user_role(release: Release, kind: str, rules: Sequence[Manifest]) -> Manifest:
    role = _role(release, f"{release.fullname}-{kind}", None, rules)
    role["metadata"]["labels"][f"{RBAC}/aggregate-to-{kind}"] = "true"
    return role


def _role(release: Release, name: str, namespace: str | None, rules: Sequence[Manifest]) -> Manifest:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRole" if namespace is None else "Role",
        "metadata": release.metadata(name, namespace=namespace),
        "rules": [dict(rule) for rule in rules],
    }


def _binding(release: Release, name: str, namespace: str | None) -> Manifest:
    kind = "ClusterRole" if namespace is None else "Role"
    account = {"kind": "ServiceAccount", "name": release.service_account, "namespace": release.namespace}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": release.metadata(name, namespace=namespace),
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
        "subjects": [account],
    }
