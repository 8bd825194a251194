"""All objects of one installation, in the order in which they are applied."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.backends.kube.install import monitoring, network, rights, workload
from batuta.backends.kube.install.release import Manifest, Release
from batuta.backends.kube.install.values import JournalType

POD_SECURITY = "pod-security.kubernetes.io"


def namespace(release: Release) -> Manifest:
    """The operator's namespace, in which nothing may run that has more rights than it needs."""
    levels = {f"{POD_SECURITY}/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": release.metadata(release.namespace, namespace=None, labels=levels),
    }


def manifests(release: Release) -> list[Manifest]:
    """What the chart's templates make of the same values. CRDs and the namespace are not part of it."""
    values = release.values
    claims = (
        values.journal.type is JournalType.VOLUME
        and not values.journal.persistent_volume_claim.existing_claim
    )
    wanted: Sequence[tuple[bool, list[Manifest]]] = (
        (values.service_account.create, [workload.service_account(release)]),
        (values.rbac.create, rights.operator_rights(release)),
        (values.rbac.user_roles, rights.user_roles(release)),
        (True, [workload.config_map(release)]),
        (bool(values.queues), [workload.queue_files(release)]),
        (claims, [workload.claim(release)]),
        (values.network_policy.enabled, [network.network_policy(release)]),
        (True, [network.service(release), workload.deployment(release)]),
        (values.pod_disruption_budget.enabled and values.replicas > 1, [network.disruption_budget(release)]),
        (values.service_monitor.enabled, [monitoring.service_monitor(release)]),
        (values.prometheus_rule.enabled, [monitoring.prometheus_rule(release)]),
    )
    return [manifest for included, found in wanted if included for manifest in found]
