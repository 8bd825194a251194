"""Every query of every dashboard and alert, asked of a real Prometheus that scraped a real Batuta."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.request import urlopen

import pytest
import yaml

from batuta.api.scheduler_counters import CARRY_OUT
from batuta.core.decide import STEPS
from tests.support.chart import CHART, Json, alert_groups, alerts
from tests.support.observed_load import ObservedServer, observed_server
from tests.support.prometheus import Prometheus, promtool

OURS = 'job="batuta"'
NO_DATA = {
    "avg(batuta_gpu_utilisation_ratio)": "no job of this load touches its GPU: nothing is measured",
    'batuta_gpu_utilisation_ratio{node="$node"}': "the same",
    'batuta_job_idle_seconds{job_id="$job"}': "nobody is idle for 15 minutes",
    "batuta_duration_forecast_coverage": "no job ends here that a forecast was made for",
    'ALERTS{alertname=~"Batuta.*"}': "nothing is wrong",
}
"""Queries that are right and find nothing here, and why."""
ABSENT = {"batuta_operator_leader": "only an operator on Kubernetes has replicas, of which one leads"}
PAGES: dict[str, Json] = {path.name: json.loads(path.read_text()) for path in sorted((CHART / "dashboards").iterdir())}


@dataclass(frozen=True, slots=True)
class Scraped:
    """What tests ask."""

    prometheus: Prometheus
    server: ObservedServer
    words: dict[str, str]
    """What stands for the variables of dashboards."""

    def fill(self, query: str) -> str:
        for variable, word in self.words.items():
            query = query.replace(variable, word)
        return query


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """A Prometheus that has watched the whole load."""
    folder = tmp_path_factory.mktemp("observed")
    rules = folder / "rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": alert_groups(OURS)}))
    with (
        observed_server(folder, "--metrics-per-job", "1") as server,
        Prometheus(folder / "prometheus", {"batuta": server.address}, rules) as prometheus,
    ):
        prometheus.until(lambda: prometheus.query("batuta_engine_healthy == 1"), "the first scrape")
        job = server.make_load()
        progress = f'batuta_job_step_seconds{{job_id="{job}"}}'
        prometheus.until(lambda: prometheus.query(progress), "the job's progress is scraped")
        found = "rate(batuta_health_findings_total[1m])"
        prometheus.until(lambda: prometheus.query(found), "what the GPU's driver said is scraped twice")
        node = server.client.nodes()[0].name
        words = {"$__rate_interval": "1m", "$queue": ".*", "$job": job, "$node": node}
        yield Scraped(prometheus, server, words)


def queries_of(page: Json) -> list[str]:
    """Every query of a dashboard, those of its variables among them."""
    panels = [target["expr"] for panel in page["panels"] for target in panel["targets"]]
    choices = [one["query"]["query"] for one in page["templating"]["list"] if one["type"] == "query"]
    return panels + choices


@pytest.mark.parametrize("page", PAGES)
def test_every_query_of_a_dashboard_finds_something(scraped: Scraped, page: str):
    empty = [query for query in queries_of(PAGES[page]) if query not in NO_DATA and not _finds(scraped, query)]
    assert not empty


def _finds(scraped: Scraped, query: str) -> bool:
    """Whether there is a number in the answer. What can be chosen is asked as Grafana asks it."""
    choice = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
    if choice is not None:
        return bool(scraped.prometheus.label_values(choice[1], choice[2]))
    found = scraped.prometheus.query(scraped.fill(query))
    return any(not math.isnan(float(one["value"][1])) for one in found)


def test_queries_that_find_nothing_are_right_all_the_same(scraped: Scraped):
    known = {query for page in PAGES.values() for query in queries_of(page)}
    assert set(NO_DATA) <= known, "a query is excused that no dashboard has"
    for query in NO_DATA:
        scraped.prometheus.query(scraped.fill(query))


def test_only_as_many_jobs_have_series_as_were_asked_for(scraped: Scraped):
    # given two jobs that run, and a server that was told to show one
    (running,) = scraped.prometheus.query('batuta_jobs{state="RUNNING"}')
    assert running["value"][1] == "2"
    # then it is the first one, and Prometheus has left its label alone
    found = [one["metric"] for one in scraped.prometheus.query("batuta_job_gpus")]
    assert [(one["job_id"], one["job"]) for one in found] == [(scraped.words["$job"], "batuta")]


def test_every_step_of_a_cycle_is_measured(scraped: Scraped):
    found = scraped.prometheus.query("batuta_cycle_step_seconds_count > 0")
    assert {one["metric"]["step"] for one in found} == {*STEPS, CARRY_OUT}


def test_prometheus_evaluates_every_alert_and_none_fires(scraped: Scraped):
    def evaluated() -> list[dict[str, str]]:
        rules = scraped.prometheus.ask("rules")["groups"][0]["rules"]
        return rules if all(rule["health"] != "unknown" for rule in rules) else []

    rules = scraped.prometheus.until(evaluated, "every rule is evaluated")
    assert [rule["name"] for rule in rules] == [alert["alert"] for alert in alerts(OURS)]
    assert {rule["health"] for rule in rules} == {"ok"}, [rule.get("lastError") for rule in rules]
    assert {rule["state"] for rule in rules} <= {"inactive", "pending"}


def test_what_alerts_look_at_is_there(scraped: Scraped):
    """An alert on a series that does not exist never fires, and nobody notices."""
    selectors = {found for alert in alerts(OURS) for found in re.findall(r"\w+\{[^}]*\}", alert["expr"])}
    empty = {one for one in selectors if not scraped.prometheus.query(one)}
    assert {one.partition("{")[0] for one in empty} == set(ABSENT)


def test_promtool_finds_nothing_wrong_with_the_metrics(scraped: Scraped):
    with urlopen(f"{scraped.server.url}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    done = promtool("check", "metrics", given=text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_dashboards_are_unlike_each_other():
    assert len({page["uid"] for page in PAGES.values()}) == len(PAGES) == 5
    for page in PAGES.values():
        assert all(panel["targets"] for panel in page["panels"])
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in page["panels"]]
        assert len(set(places)) == len(places)
