"""Alerts and the monitor look at the Service of their own release."""

from batuta.backends.kube.install.monitoring import prometheus_rule, service_monitor
from batuta.backends.kube.install.operator import service
from tests.support.chart import release_of


def expressions() -> list[str]:
    rule = prometheus_rule(release_of({}))
    return [alert["expr"] for group in rule["spec"]["groups"] for alert in group["rules"]]


def test_the_monitor_selects_the_service_and_names_its_port():
    release = release_of({})
    selected = service_monitor(release)["spec"]["selector"]["matchLabels"]
    exposed = service(release)
    assert selected.items() <= exposed["metadata"]["labels"].items()
    assert service_monitor(release)["spec"]["endpoints"][0]["port"] == exposed["spec"]["ports"][0]["name"]


def test_alerts_look_at_the_job_that_prometheus_makes_of_the_service():
    """The Prometheus operator calls a scrape's job by its Service."""
    name = service(release_of({}))["metadata"]["name"]
    assert all(f'job="{name}"' in expression for expression in expressions())
