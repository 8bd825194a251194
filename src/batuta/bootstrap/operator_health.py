"""Health at an operator: its rules are read at the start, what is remembered when it leads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from batuta.backends.kube import names
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError
from batuta.backends.kube.health.burn_in import BurnInOptions
from batuta.backends.kube.health.desk import HealthDesk, HealthOptions
from batuta.backends.kube.health.memory import Stored, load
from batuta.backends.kube.operator.floor import Floor
from batuta.backends.kube.operator.observed import Observed
from batuta.backends.kube.operator.run import Run, Site
from batuta.backends.kube.operator_config import OperatorConfig
from batuta.core.cluster import NodeName
from batuta.core.job import JobId
from batuta.engine.health.seen import HealthSeen
from batuta.gpu.health.rules_file import parse_rules, read_rules

_log = logging.getLogger("batuta.operator")
_TRY_AGAIN_S = 2.0


def health_options(config: OperatorConfig, namespace: str) -> HealthOptions | None:
    """How health is looked after, None where it is not; an InputError for rules that cannot be read."""
    chosen = config.health
    if not chosen.enabled:
        return None
    burn_in = chosen.burn_in
    return HealthOptions(
        parse_rules(chosen.rules, "config.health.rules") if chosen.rules else read_rules(),
        namespace,
        config.health_memory,
        chosen.pool_label,
        BurnInOptions(
            burn_in.image,
            tuple(burn_in.command),
            burn_in.runtime_class_name,
            burn_in.timeout_seconds,
            namespace,
        ),
    )


@dataclass(frozen=True, slots=True)
class HealthStart:
    """What an operator that begins to lead knows of health."""

    options: HealthOptions
    stored: Stored

    def desk(
        self, site: Site, observed: Observed, runs: Mapping[JobId, Run], gpu_resources: tuple[str, ...]
    ) -> HealthDesk:
        """The desk that goes on from there."""
        return HealthDesk(self.options, self.stored, site, observed, runs, gpu_resources)


class SeenByOperator:
    """What the API and Prometheus are told of health. Nothing is changed through them: kubectl does that."""

    def __init__(self, floor: Floor) -> None:
        self._desk = next((desk for desk in floor.desks if isinstance(desk, HealthDesk)), None)

    def seen(self) -> HealthSeen:
        return HealthSeen() if self._desk is None else HealthSeen(*self._desk.snapshot)

    def mended(self, node: NodeName, gpu: int | None, who: str) -> None:
        part = "node" if gpu is None else f"gpu-{gpu}"
        raise ValueError(f"say it to the cluster: kubectl annotate node {node} {names.MENDED}={part}")

    def cordoned(self, node: NodeName, who: str) -> None:
        raise ValueError(f"say it to the cluster: kubectl cordon {node}")

    def uncordoned(self, node: NodeName, who: str) -> None:
        raise ValueError(f"say it to the cluster: kubectl uncordon {node}")


async def remember(api: Api, options: HealthOptions) -> HealthStart:
    """Reads what the last leader stored. Nothing is decided before: what is ill would be used again."""
    while True:
        try:
            return HealthStart(options, await load(api, options.namespace, options.memory_name))
        except ApiError as error:
            _log.warning("cannot read the memory of health: %s; trying again", error)
            await asyncio.sleep(_TRY_AGAIN_S)
