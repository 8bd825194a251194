"""All objects of one installation, in the order in which they are applied."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.backends.kube.install import (
    agent,
    device_plugin,
    log_collector,
    monitoring,
    network,
    rights,
    workload,
)
from batuta.backends.kube.install.release import Manifest, Release
from batuta.backends.kube.install.values import JournalType

POD_SECURITY = "pod-security.kubernetes.io"


def namespace(release: Release) -> Manifest:
    """The operator's namespace, in which nothing may run that has more rights than it needs."""
    # What runs on nodes needs folders of the node, which no level but the last one allows.
    values = release.values
    on_nodes = values.device_plugin.enabled or values.agent.enabled or values.log_collector.enabled
    level = "privileged" if on_nodes else "restricted"
    levels = {f"{POD_SECURITY}/{mode}": level for mode in ("enforce", "warn", "audit")}
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
        (values.device_plugin.enabled, device_plugin.device_plugin(release)),
        (values.service_monitor.enabled, [monitoring.service_monitor(release)]),
        (values.prometheus_rule.enabled, [monitoring.prometheus_rule(release)]),
        (values.grafana_dashboards.enabled, [monitoring.grafana_dashboards(release)]),
        (values.agent.enabled, agent.agent(release)),
        (values.log_collector.enabled, log_collector.log_collector(release)),
    )
    return [manifest for included, found in wanted if included for manifest in found]
