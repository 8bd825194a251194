"""Gives an operator its desk for trials, and the gate before jobs that wait for one."""

from __future__ import annotations

from collections.abc import Callable

from batuta.backends.kube.operator.floor import Floor
from batuta.backends.kube.operator.observed import Observed
from batuta.backends.kube.operator.run import Site
from batuta.backends.kube.trial.desk import TrialDesk
from batuta.backends.kube.trial.gate import TrialGate
from batuta.backends.kube.trial.trial import Bench
from batuta.core.job import Job
from batuta.core.world import World


def set_up_trials(
    floor: Floor,
    site: Site,
    observed: Observed,
    world: World,
    most_that_fit: Callable[[Job], int],
    is_known: Callable[[Job], bool] = lambda job: True,
) -> TrialDesk:
    """After all others that have a say in whether a job may run: they are asked once it was tried out."""
    bench = Bench(observed, world, site.writes, site.say, most_that_fit, is_known)
    desk = TrialDesk(bench, floor.touch)
    gate = TrialGate(desk, site.gate, site.choose, observed, world)
    site.gate, site.choose = gate, gate.choose
    floor.desks.append(desk)
    return desk
