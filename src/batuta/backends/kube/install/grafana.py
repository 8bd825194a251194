"""Dashboards as Grafana imports them, from rows of panels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

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
