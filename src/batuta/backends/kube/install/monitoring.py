"""For the Prometheus operator and Grafana: where the metrics are, when to wake somebody, what to look at."""

from __future__ import annotations

from batuta.backends.kube.install import alerts, dashboards
from batuta.backends.kube.install.release import Manifest, Release

API_VERSION = "monitoring.coreos.com/v1"


def service_monitor(release: Release) -> Manifest:
    chosen = release.values.service_monitor
    return {
        "apiVersion": API_VERSION,
        "kind": "ServiceMonitor",
        "metadata": release.metadata(release.fullname, labels=chosen.labels),
        "spec": {
            "selector": {"matchLabels": release.selector},
            "endpoints": [
                {
                    "port": "http",
                    "path": "/metrics",
                    "interval": chosen.interval,
                    "scrapeTimeout": chosen.scrape_timeout,
                }
            ],
        },
    }


def prometheus_rule(release: Release) -> Manifest:
    ours = f'job="{release.fullname}",namespace="{release.namespace}"'
    return {
        "apiVersion": API_VERSION,
        "kind": "PrometheusRule",
        "metadata": release.metadata(release.fullname, labels=release.values.prometheus_rule.labels),
        "spec": {"groups": alerts.groups(release.fullname, ours)},
    }


def grafana_dashboards(release: Release) -> Manifest:
    """Dashboards where Grafana's sidecar looks for them."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": release.metadata(
            f"{release.fullname}-dashboards", labels=release.values.grafana_dashboards.labels
        ),
        "data": dashboards.files(),
    }
