"""The health of nodes and GPUs as metrics: few series, whatever the size of the cluster."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from batuta.api.metric_families import counter, gauge
from batuta.core.health_record import State
from batuta.engine.health.seen import HealthSeen

_STATES = tuple(state for state in State if state is not State.HEALTHY)


def health_metrics(seen: HealthSeen) -> Iterator[Metric]:
    """What is not well, and what was found."""
    states = [record.state for record in seen.records.values()]
    yield gauge(
        "batuta_health_targets",
        "GPUs, and nodes as a whole, that are not healthy, by what is thought of them.",
        ["state"],
        {(state.value,): states.count(state) for state in _STATES},
    )
    yield gauge(
        "batuta_health_held",
        "What is ill and stays in service, because too much of its pool is out already.",
        [],
        {(): len(seen.alerts)},
    )
    found = {(source.value, action.value): count for (source, action), count in seen.found.items()}
    yield counter(
        "batuta_health_findings",
        "What sources told of GPUs, by what was to be done about it.",
        ["source", "action"],
        found,
    )
