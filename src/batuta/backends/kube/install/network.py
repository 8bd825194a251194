"""How the operator is reached, who may reach it, and what a drain leaves alone."""

from __future__ import annotations

from batuta.backends.kube.install.release import Manifest, Release, filled


def service(release: Release) -> Manifest:
    """API and metrics have one port."""
    chosen = release.values.service
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": release.metadata(release.fullname, annotations=chosen.annotations),
        "spec": {
            "type": chosen.type.value,
            "selector": release.selector,
            "ports": [{"name": "http", "port": chosen.port, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def network_policy(release: Release) -> Manifest:
    rules = release.values.network_policy
    # Operators that do not lead pass questions on to the one that does.
    own = {"podSelector": {"matchLabels": release.selector}}
    peers = [*rules.ingress_from, own] if rules.ingress_from else []
    ingress = {"ports": [{"port": "http", "protocol": "TCP"}]} | filled(**{"from": peers})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": release.metadata(release.operator),
        "spec": {
            "podSelector": {"matchLabels": release.selector},
            "policyTypes": ["Ingress", *(["Egress"] if rules.egress else [])],
            "ingress": [ingress],
        }
        | filled(egress=rules.egress),
    }


def disruption_budget(release: Release) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": release.metadata(release.operator),
        "spec": {
            "minAvailable": 1,
            "selector": {"matchLabels": release.selector},
            # A replica that does not work protects nobody, and may go.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
