"""Alerts and the monitor look at the Service of their own release."""

from tests.support.chart import Json, installed


def observed(kind: str) -> Json:
    return installed(kind, {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}, "batuta")


def test_the_monitor_selects_the_service_and_names_its_port():
    monitor, exposed = observed("ServiceMonitor")["spec"], observed("Service")
    selected = monitor["selector"]["matchLabels"]
    assert selected.items() <= exposed["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] == exposed["spec"]["ports"][0]["name"]


def test_alerts_look_at_the_job_that_prometheus_makes_of_the_service():
    """The Prometheus operator calls a scrape's job by its Service."""
    name = observed("Service")["metadata"]["name"]
    (group,) = observed("PrometheusRule")["spec"]["groups"]
    assert all(f'job="{name}"' in alert["expr"] for alert in group["rules"])
