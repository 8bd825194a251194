"""When alerts fire, and when they do not: promtool runs them on series that are made up."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.chart import Json, alert_groups, alerts
from tests.support.prometheus import promtool

OURS = 'job="batuta",namespace="ml"'
ALERTS = alerts(OURS)

Series = dict[str, str]
"""Values, one for each minute, by series; `a+bxn` counts up."""


def _ended(state: str, values: str) -> Series:
    return {f'batuta_jobs_ended_total{{state="{state}"}}': values}


def _gpus(**states: int) -> Series:
    return {f'batuta_gpus{{state="{state}"}}': f"{count}x70" for state, count in states.items()}


_BAD: dict[str, Series] = {
    "BatutaDown": {"up": "0x70"},
    "BatutaHasNoLeader": {
        'batuta_operator_leader{pod="a"}': "0x70",
        'batuta_operator_leader{pod="b"}': "0x70",
    },
    "BatutaEngineStopped": {"batuta_engine_healthy": "0x70"},
    "BatutaDecisionsSlow": {"batuta_cycle_seconds_sum": "0+60x70", "batuta_cycle_seconds_count": "0+10x70"},
    "BatutaQueueStuck": {
        'batuta_queue_oldest_wait_seconds{queue="a"}': "90000+60x70",
        'batuta_queue_admitted_total{queue="a"}': "7x70",
    },
    "BatutaGpusIdleWhileJobsWait": _gpus(free=3, total=10) | {'batuta_queue_pending{queue="a"}': "1x70"},
    "BatutaGpusHeldIdle": {'batuta_gpu_seconds_total{use="idle"}': "0+180x70"} | _gpus(total=10),
    "BatutaWorkLost": {
        'batuta_lost_gpu_seconds_total{cause="preempted"}': "0+120x70",
        'batuta_gpu_seconds_total{use="used"}': "0+600x70",
    },
    "BatutaGpusUnhealthy": _gpus(unhealthy=2, total=10),
    "BatutaGuardRailHolds": {"batuta_health_held": "2x70"},
    "BatutaNodeLost": {'batuta_nodes{state="lost"}': "1x70"},
    "BatutaJobsFail": _ended("FAILED", "0+3x70") | _ended("SUCCEEDED", "0+1x70"),
}
"""By alert: a cluster in which it has to fire."""
_GOOD: dict[str, Series] = {
    "BatutaDown": {"up": "1x70"},
    "BatutaHasNoLeader": {
        'batuta_operator_leader{pod="a"}': "0x70",
        'batuta_operator_leader{pod="b"}': "1x70",
    },
    "BatutaEngineStopped": {"batuta_engine_healthy": "1x70"},
    "BatutaDecisionsSlow": {"batuta_cycle_seconds_sum": "0+20x70", "batuta_cycle_seconds_count": "0+10x70"},
    "BatutaQueueStuck": {
        'batuta_queue_oldest_wait_seconds{queue="a"}': "90000+60x70",
        'batuta_queue_admitted_total{queue="a"}': "0+1x70",
    },
    "BatutaGpusIdleWhileJobsWait": _gpus(free=3, total=10) | {'batuta_queue_pending{queue="a"}': "0x70"},
    "BatutaGpusHeldIdle": {'batuta_gpu_seconds_total{use="idle"}': "0+60x70"} | _gpus(total=10),
    "BatutaWorkLost": {
        'batuta_lost_gpu_seconds_total{cause="preempted"}': "0+30x70",
        'batuta_gpu_seconds_total{use="used"}': "0+600x70",
    },
    "BatutaGpusUnhealthy": _gpus(unhealthy=1, total=10),
    "BatutaGuardRailHolds": {"batuta_health_held": "0x70"},
    "BatutaNodeLost": {'batuta_nodes{state="lost"}': "0x70"},
    "BatutaJobsFail": _ended("FAILED", "0+1x70") | _ended("SUCCEEDED", "0+3x70"),
}
"""By alert: a cluster that is like it, and fine."""


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": alert_groups(OURS)}))
    return path


def _ours(series: Series) -> list[dict[str, str]]:
    """The series as Prometheus has them of this installation."""
    found = []
    for name, values in series.items():
        bare, _, labels = name.partition("{")
        kept = ",".join(filter(None, (OURS, labels.removesuffix("}"))))
        found.append({"series": f"{bare}{{{kept}}}", "values": values})
    return found


def _run(rules: Path, cases: list[dict[str, Any]]) -> None:
    path = rules.with_name("tests.yaml")
    path.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": cases}))
    done = promtool("test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


def _case(name: str, series: list[dict[str, str]], **expected: list[dict[str, Any]]) -> dict[str, Any]:
    """What an alert has to say at certain times, which are named like `after_65m`."""
    asked = [
        {"eval_time": at.removeprefix("after_"), "alertname": name, "exp_alerts": found}
        for at, found in expected.items()
    ]
    return {"name": name, "interval": "1m", "input_series": series, "alert_rule_test": asked}


def _expected(alert: Json) -> list[dict[str, Any]]:
    own = {
        "BatutaEngineStopped": {"job": "batuta", "namespace": "ml"},
        "BatutaQueueStuck": {"job": "batuta", "namespace": "ml", "queue": "a"},
    }.get(alert["alert"], {})
    summary = alert["annotations"]["summary"].replace("{{ $labels.queue }}", "a")
    notes = alert["annotations"] | {"summary": summary}
    return [{"exp_labels": own | alert["labels"], "exp_annotations": notes}]


def test_promtool_finds_nothing_wrong(rules: Path):
    done = promtool("check", "rules", rules)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def test_every_alert_fires_when_it_has_to_and_not_at_once(rules: Path):
    # given a cluster in which something is wrong for more than an hour
    # then nobody is woken in the first minute, but later, with what to do about it
    cases = [_case(one["alert"], _ours(_BAD[one["alert"]]), after_1m=[], after_65m=_expected(one)) for one in ALERTS]
    _run(rules, cases)


def test_no_alert_fires_when_all_is_well(rules: Path):
    assert set(_GOOD) == set(_BAD) == {one["alert"] for one in ALERTS}
    _run(rules, [_case(name, _ours(series), after_65m=[]) for name, series in _GOOD.items()])


def test_no_alert_cares_for_another_installation(rules: Path):
    cases = [
        _case(name, [{"series": key, "values": values} for key, values in series.items()], after_65m=[])
        for name, series in _BAD.items()
        if name != "BatutaDown"
    ]
    _run(rules, cases)
