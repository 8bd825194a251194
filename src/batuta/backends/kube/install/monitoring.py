"""For the Prometheus operator and Grafana: ServiceMonitor, PrometheusRule and dashboards.

Dashboards are rows of panels, rendered to the JSON that Grafana imports: cluster, queues, job, node, health.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from batuta.backends.kube.install.alerts import groups
from batuta.backends.kube.install.release import Manifest, Release

Json: TypeAlias = dict[str, Any]

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24
_HEIGHT = 8


@dataclass(frozen=True, slots=True)
class Panel:
    """A picture of some queries."""

    title: str
    queries: Mapping[str, str]
    """By legend: text in double braces is filled from labels."""
    unit: str = "short"
    kind: Literal["timeseries", "stat", "bargauge", "table"] = "timeseries"
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A page of panels."""

    uid: str
    title: str
    description: str
    rows: tuple[tuple[Panel, ...], ...]
    choices: tuple[tuple[str, str], ...] = ()
    """Variables beside the data source, and the query that lists what can be chosen."""


def shown(dashboard: Dashboard) -> Json:
    """What goes into a file."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["batuta"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "",
        "templating": {"list": [_source(), *(_choice(name, query) for name, query in dashboard.choices)]},
        "annotations": {"list": []},
        "panels": list(_placed(dashboard.rows)),
    }


def queries_of(page: Json) -> list[str]:
    """Every query of a dashboard, those of its variables among them."""
    panels = [target["expr"] for panel in page["panels"] for target in panel["targets"]]
    choices = [one["query"]["query"] for one in page["templating"]["list"] if one["type"] == "query"]
    return panels + choices


def _source() -> Json:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _choice(name: str, query: str) -> Json:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
    }


def _placed(rows: Iterable[tuple[Panel, ...]]) -> Iterable[Json]:
    number = 0
    for line, row in enumerate(rows):
        width = _COLUMNS // len(row)
        for place, panel in enumerate(row):
            number += 1
            where = {"h": _HEIGHT, "w": width, "x": place * width, "y": line * _HEIGHT}
            yield _panel(panel, number, where)


def _panel(panel: Panel, number: int, where: Json) -> Json:
    defaults: Json = {"unit": panel.unit, "min": 0}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none"}
        defaults["custom"] = {"fillOpacity": 60 if panel.stacked else 10, "stacking": stacking}
    instant = panel.kind != "timeseries"
    targets = [
        {
            "refId": chr(ord("A") + i),
            "datasource": _SOURCE,
            "expr": query,
            "legendFormat": legend,
            "instant": instant,
            "range": not instant,
        }
        for i, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number,
        "title": panel.title,
        "type": panel.kind,
        "datasource": _SOURCE,
        "gridPos": where,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": targets,
    }


_RATE = "[$__rate_interval]"


def _quantile(level: float, name: str, *labels: str) -> str:
    """Of a histogram, for each of the labels."""
    kept = ", ".join(("le", *labels))
    return f"histogram_quantile({level:g}, sum by ({kept}) (rate({name}_bucket{_RATE})))"


CLUSTER = Dashboard(
    "batuta-cluster",
    "Batuta / Cluster",
    "GPUs, jobs and decisions of the whole cluster.",
    (
        (
            Panel("GPUs", {"{{state}}": 'sum by (state) (batuta_gpus{state!="total"})'}, stacked=True),
            Panel(
                "Jobs alive",
                {
                    "{{state}}": 'sum by (state) (batuta_jobs{state=~"PENDING|SETTING_UP|RUNNING|RESIZING|'
                    'PREEMPTED"})'
                },
                stacked=True,
            ),
            Panel(
                "Where GPU time goes",
                {"{{use}}": f"sum by (use) (rate(batuta_gpu_seconds_total{_RATE}))"},
                stacked=True,
            ),
        ),
        (
            Panel(
                "Utilisation",
                {
                    "held and used": f'sum(rate(batuta_gpu_seconds_total{{use="used"}}{_RATE}))'
                    f" / sum(rate(batuta_gpu_seconds_total{_RATE}))",
                    "measured": "avg(batuta_gpu_utilisation_ratio)",
                },
                "percentunit",
            ),
            Panel(
                "Waiting until the first start",
                {
                    "median": _quantile(0.5, "batuta_job_wait_seconds"),
                    "P90": _quantile(0.9, "batuta_job_wait_seconds"),
                },
                "s",
            ),
            Panel(
                "From submit to end",
                {
                    "median": _quantile(0.5, "batuta_job_completion_seconds"),
                    "P90": _quantile(0.9, "batuta_job_completion_seconds"),
                },
                "s",
            ),
        ),
        (
            Panel("Commands", {"{{kind}}": f"sum by (kind) (rate(batuta_commands_total{_RATE}))"}, "ops"),
            Panel("Why jobs have what they have", {"{{reason}}": "sum by (reason) (batuta_jobs_by_reason)"}),
            Panel(
                "Work lost",
                {"{{cause}}": f"sum by (cause) (rate(batuta_lost_gpu_seconds_total{_RATE}))"},
            ),
        ),
        (
            Panel("Fragmentation", {"of free GPUs": "max(batuta_fragmentation_ratio)"}, "percentunit"),
            Panel(
                "Jobs across nodes",
                {"one node is enough: {{fits_one_node}}": "sum by (fits_one_node) (batuta_cross_node_jobs)"},
                stacked=True,
            ),
            Panel(
                "Jobs that came and ended",
                {
                    "submitted": f"sum(rate(batuta_jobs_submitted_total{_RATE}))",
                    "{{state}}": f"sum by (state) (rate(batuta_jobs_ended_total{_RATE}))",
                },
                "ops",
            ),
        ),
    ),
)

QUEUES = Dashboard(
    "batuta-queues",
    "Batuta / Queues",
    "Quota, and what is made of it.",
    (
        (
            Panel("Jobs that wait", {"{{queue}}": 'batuta_queue_pending{queue=~"$queue"}'}, stacked=True),
            Panel("Longest wait", {"{{queue}}": 'batuta_queue_oldest_wait_seconds{queue=~"$queue"}'}, "s"),
            Panel("GPUs in use", {"{{queue}}": 'batuta_queue_gpus{queue=~"$queue"}'}, stacked=True),
        ),
        (
            Panel(
                "Quota in use",
                {
                    "{{queue}} {{flavor}} {{resource}}": 'batuta_queue_used{queue=~"$queue"}'
                    ' / (batuta_queue_nominal{queue=~"$queue"} > 0)'
                },
                "percentunit",
            ),
            Panel(
                "Borrowed", {"{{queue}} {{flavor}} {{resource}}": 'batuta_queue_borrowed{queue=~"$queue"}'}
            ),
            Panel("Lent", {"{{queue}} {{flavor}} {{resource}}": 'batuta_queue_lent{queue=~"$queue"}'}),
        ),
        (
            Panel(
                "Jobs that were given GPUs",
                {"{{queue}}": f'rate(batuta_queue_admitted_total{{queue=~"$queue"}}{_RATE})'},
                "ops",
            ),
            Panel(
                "Preempted",
                {"{{queue}} {{reason}}": f'rate(batuta_queue_preempted_total{{queue=~"$queue"}}{_RATE})'},
                "ops",
            ),
            Panel("Weighted share", {"{{queue}}": 'batuta_queue_weighted_share{queue=~"$queue"}'}),
        ),
    ),
    (("queue", "label_values(batuta_queue_pending, queue)"),),
)

JOB = Dashboard(
    "batuta-job",
    "Batuta / Job",
    "One job of those that have metrics of their own (--metrics-per-job).",
    (
        (
            Panel("GPUs", {"GPUs": 'batuta_job_gpus{job_id="$job"}'}),
            Panel("Progress", {"done": 'batuta_job_progress_ratio{job_id="$job"}'}, "percentunit"),
            Panel("Goodput", {"of perfect": 'batuta_job_goodput_ratio{job_id="$job"}'}, "percentunit"),
        ),
        (
            Panel("Samples per second", {"samples/s": 'batuta_job_samples_per_second{job_id="$job"}'}),
            Panel("Time of a step", {"step": 'batuta_job_step_seconds{job_id="$job"}'}, "s"),
            Panel("Idle", {"idle": 'batuta_job_idle_seconds{job_id="$job"}'}, "s"),
        ),
        (
            Panel("GPU-hours held", {"GPU-hours": 'batuta_job_gpu_seconds_total{job_id="$job"} / 3600'}),
            Panel("Restarts", {"restarts": 'batuta_job_restarts_total{job_id="$job"}'}),
        ),
    ),
    (("job", "label_values(batuta_job_gpus, job_id)"),),
)

NODE = Dashboard(
    "batuta-node",
    "Batuta / Node",
    "One node and its GPUs.",
    (
        (
            Panel("GPUs", {"{{state}}": 'batuta_node_gpus{node="$node"}'}, stacked=True),
            Panel("In service", {"ready": 'batuta_node_ready{node="$node"}'}, kind="stat"),
        ),
        (
            Panel(
                "How busy its GPUs are",
                {"GPU {{gpu}}": 'batuta_gpu_utilisation_ratio{node="$node"}'},
                "percentunit",
            ),
        ),
    ),
    (("node", "label_values(batuta_node_ready, node)"),),
)

HEALTH = Dashboard(
    "batuta-health",
    "Batuta / Health",
    "Batuta itself, its nodes and its GPUs.",
    (
        (
            Panel("Engine", {"goes on": "min(batuta_engine_healthy)"}, kind="stat"),
            Panel("Version and policy", {"{{version}} {{policy}}": "batuta_build_info"}, kind="stat"),
            Panel("Nodes", {"{{state}}": "sum by (state) (batuta_nodes)"}, stacked=True),
            Panel("GPUs out of service", {"unhealthy": 'sum(batuta_gpus{state="unhealthy"})'}),
        ),
        (
            Panel("Not well", {"{{state}}": "sum by (state) (batuta_health_targets)"}, stacked=True),
            Panel("Ill and kept in service by the guard rail", {"held": "sum(batuta_health_held)"}),
            Panel(
                "Findings",
                {
                    "{{source}}: {{action}}": "sum by (source, action) "
                    f"(rate(batuta_health_findings_total{_RATE}))"
                },
                "ops",
            ),
        ),
        (
            Panel(
                "Time of a cycle",
                {
                    "median": _quantile(0.5, "batuta_cycle_seconds"),
                    "P99": _quantile(0.99, "batuta_cycle_seconds"),
                },
                "s",
            ),
            Panel(
                "Time by step",
                {"{{step}}": f"sum by (step) (rate(batuta_cycle_step_seconds_sum{_RATE}))"},
                "percentunit",
                stacked=True,
            ),
            Panel("CPU of the engine", {"CPU": f"sum(rate(batuta_engine_cpu_seconds_total{_RATE}))"}),
        ),
        (
            Panel(
                "Faults",
                {
                    "{{type}}": "sum by (type) (rate(batuta_events_total{type=~"
                    f'"NodeLost|NodeReturned|GpuFailed|GpuRepaired|JobInterrupted"}}{_RATE}))'
                },
                "ops",
            ),
            Panel(
                "Steps of starts and stops, P90",
                {"{{step}}": _quantile(0.9, "batuta_transition_seconds", "step")},
                "s",
            ),
            Panel(
                "Forecasts that came true",
                {"P{{quantile}}": "batuta_duration_forecast_coverage"},
                "percentunit",
            ),
        ),
        (Panel("Alerts", {"{{alertname}}": 'ALERTS{alertname=~"Batuta.*"}'}, kind="table"),),
    ),
)

DASHBOARDS = {"cluster": CLUSTER, "queues": QUEUES, "job": JOB, "node": NODE, "health": HEALTH}


def dashboard_files() -> dict[str, str]:
    """The text of every file, by its name."""
    return {
        f"{name}.json": json.dumps(shown(one), indent=2, ensure_ascii=False) + "\n"
        for name, one in DASHBOARDS.items()
    }


MONITORING_API = "monitoring.coreos.com/v1"


def service_monitor(release: Release) -> Manifest:
    chosen = release.values.service_monitor
    return {
        "apiVersion": MONITORING_API,
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
        "apiVersion": MONITORING_API,
        "kind": "PrometheusRule",
        "metadata": release.metadata(release.fullname, labels=release.values.prometheus_rule.labels),
        "spec": {"groups": groups(release.fullname, ours)},
    }


def grafana_dashboards(release: Release) -> Manifest:
    """Dashboards where Grafana's sidecar looks for them."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": release.metadata(
            f"{release.fullname}-dashboards", labels=release.values.grafana_dashboards.labels
        ),
        "data": dashboard_files(),
    }
