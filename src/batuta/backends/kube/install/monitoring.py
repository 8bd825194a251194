"""For the Prometheus operator: where the metrics are, and what is worth waking somebody for."""

from __future__ import annotations

from batuta.backends.kube.install.release import Manifest, Release

_API_VERSION = "monitoring.coreos.com/v1"


def service_monitor(release: Release) -> Manifest:
    chosen = release.values.service_monitor
    return {
        "apiVersion": _API_VERSION,
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
    time_s, count = (
        f"sum(rate(batuta_{name}{{{ours}}}[10m]))" for name in ("cycle_seconds_total", "cycles_total")
    )
    rules = [
        _alert(
            "BatutaOperatorDown",
            f"absent(up{{{ours}}} == 1)",
            "critical",
            "No replica of Batuta's operator can be scraped: nothing is scheduled.",
        ),
        _alert(
            "BatutaHasNoLeader",
            f"sum(batuta_operator_leader{{{ours}}}) < 1",
            "critical",
            "No replica of Batuta's operator leads: nothing is scheduled. See their logs and the Lease.",
        ),
        _alert(
            "BatutaDecisionsSlow", f"{time_s} / {count} > 5", "warning", "A decision takes more than 5 s."
        ),
    ]
    return {
        "apiVersion": _API_VERSION,
        "kind": "PrometheusRule",
        "metadata": release.metadata(release.fullname, labels=release.values.prometheus_rule.labels),
        "spec": {"groups": [{"name": release.fullname, "rules": rules}]},
    }


def _alert(name: str, expression: str, severity: str, summary: str) -> Manifest:
    return {
        "alert": name,
        "expr": expression,
        "for": "5m",
        "labels": {"severity": severity},
        "annotations": {"summary": summary},
    }
