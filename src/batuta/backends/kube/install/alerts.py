"""Prometheus alerting rules: the source of the chart's and of `batuta install`'s."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

OURS = "__ours__"
"""Stands in every selector of an expression for the labels by which Prometheus knows this installation."""
_O = f"{{{OURS}}}"


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule."""

    name: str
    expression: str
    severity: str
    """critical: nothing is scheduled, or work is lost. warning: look at it within the day."""
    summary: str
    fix: str
    after: str = "5m"


ALERTS = (
    Alert(
        "BatutaDown",
        f"absent(up{_O} == 1)",
        "critical",
        "Batuta cannot be scraped: nothing is scheduled.",
        "Look at the pods or the process, and at what they said last.",
    ),
    Alert(
        "BatutaHasNoLeader",
        f"sum(batuta_operator_leader{_O}) < 1",
        "critical",
        "No replica of Batuta's operator leads: nothing is scheduled.",
        "Look at the replicas' logs and at the Lease.",
    ),
    Alert(
        "BatutaEngineStopped",
        f"batuta_engine_healthy{_O} == 0",
        "critical",
        "Batuta's engine does not go on.",
        "GET /readyz says why: a full disk, a database that is away, a policy that fails.",
        "2m",
    ),
    Alert(
        "BatutaDecisionsSlow",
        f"sum(rate(batuta_cycle_seconds_sum{_O}[10m])) / sum(rate(batuta_cycle_seconds_count{_O}[10m])) > 5",
        "warning",
        "A decision takes more than 5 s.",
        "batuta_cycle_step_seconds tells which step; another policy may be quicker.",
    ),
    Alert(
        "BatutaQueueStuck",
        f"(batuta_queue_oldest_wait_seconds{_O} > 86400) and on (queue)"
        f" (increase(batuta_queue_admitted_total{_O}[6h]) == 0)",
        "warning",
        "In queue {{ $labels.queue }} a job waits for more than a day, and none was started for six hours.",
        "batuta explain JOB says what it waits for.",
        "30m",
    ),
    Alert(
        "BatutaGpusIdleWhileJobsWait",
        f'(sum(batuta_gpus{{state="free",{OURS}}}) / sum(batuta_gpus{{state="total",{OURS}}}) > 0.2)'
        f" and (sum(batuta_queue_pending{_O}) > 0)",
        "warning",
        "More than a fifth of the GPUs is free while jobs wait.",
        "batuta_jobs_by_reason tells why: quota, fragmentation, or types that nobody accepts.",
        "30m",
    ),
    Alert(
        "BatutaGpusHeldIdle",
        f'sum(rate(batuta_gpu_seconds_total{{use="idle",{OURS}}}[30m]))'
        f' > 0.2 * sum(batuta_gpus{{state="total",{OURS}}})',
        "warning",
        "Jobs hold more than a fifth of the GPUs without using them.",
        "batuta_job_idle_seconds names them; --idle-action can shrink or park them.",
        "30m",
    ),
    Alert(
        "BatutaWorkLost",
        f"sum(rate(batuta_lost_gpu_seconds_total{_O}[1h]))"
        f' > 0.1 * sum(rate(batuta_gpu_seconds_total{{use="used",{OURS}}}[1h]))',
        "warning",
        "More than a tenth of the work has to be done again.",
        "Look at the cause: checkpoints that are too rare, nodes that come and go, a policy that preempts.",
        "30m",
    ),
    Alert(
        "BatutaGpusUnhealthy",
        f'sum(batuta_gpus{{state="unhealthy",{OURS}}}) > 0.1 * sum(batuta_gpus{{state="total",{OURS}}})',
        "warning",
        "More than a tenth of the GPUs is ill, or on nodes that are lost.",
        "batuta nodes shows which, and why.",
        "15m",
    ),
    Alert(
        "BatutaGuardRailHolds",
        f"sum(batuta_health_held{_O}) > 0",
        "critical",
        "GPUs or nodes are ill and stay in service: so much of their pool is out that no more is taken out.",
        "batuta nodes shows which, and why. Look for what they share before you cordon more: a switch, a "
        "driver, a rule.",
        "2m",
    ),
    Alert(
        "BatutaNodeLost",
        f'sum(batuta_nodes{{state="lost",{OURS}}}) > 0',
        "warning",
        "A node does not answer.",
        "batuta nodes shows which.",
        "10m",
    ),
    Alert(
        "BatutaJobsFail",
        f'(sum(increase(batuta_jobs_ended_total{{state=~"FAILED|FAILED_SETUP",{OURS}}}[1h]))'
        f" > 0.5 * sum(increase(batuta_jobs_ended_total{_O}[1h])))"
        f" and (sum(increase(batuta_jobs_ended_total{_O}[1h])) >= 10)",
        "warning",
        "More than half of the jobs that ended within an hour failed.",
        "Many at once point to what they share: a node, an image, a file system.",
    ),
)


def groups(name: str, ours: str) -> list[dict[str, Any]]:
    """Groups of rules as Prometheus and its operator read them; `ours` are labels, as in `job="batuta"`."""
    return [{"name": name, "rules": [_rule(alert, ours) for alert in ALERTS]}]


def _rule(alert: Alert, ours: str) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expression.replace(OURS, ours),
        "for": alert.after,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.fix},
    }
