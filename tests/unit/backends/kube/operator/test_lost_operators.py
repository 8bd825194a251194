"""Operators are lost with their journals while they bind gangs of pods that nobody owns: all gangs finish."""

import random
from itertools import combinations

import pytest

from batuta.backends.kube import names, objects
from batuta.backends.kube.bounded_text import read_gpus
from batuta.backends.kube.operator.gang_binder import BIND
from tests.support.kube.nodes import NodeShape, node
from tests.support.kube.offline import Operator, Pods, done
from tests.support.kube.pods import make_gang

LONGEST = 1500
"""Steps; a run without losses takes about a hundred."""
INDEPENDENT = tuple(f"gang-{number}" for number in range(0, 16, 3))
"""Gangs whose members end one by one, whatever becomes of the others."""
OVER = ("Succeeded", "Failed")


class Story:
    """Gangs that compete for three nodes, and operators that come and go, by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.pods = Pods(*(node(f"node-{k}", k, NodeShape(gpus=8)) for k in range(3)))
        self.ages: dict[str, int] = {}
        """By pod that works: for how many steps it has."""
        for number in range(16):
            members, gpus = self.chance.choice((1, 2, 3, 4, 6, 8)), self.chance.choice((1, 1, 2, 4))
            for pod in make_gang(f"gang-{number}", min(members, 24 // gpus), gpus):
                self.pods.add(pod)
        self.operator = Operator(self.pods)

    @property
    def is_done(self) -> bool:
        return all(pod.status.phase in OVER for pod in self.pods.by_name.values())

    def go_on(self) -> None:
        """The operator does something; some of what it wrote arrives, in any order; pods run and end."""
        self.operator.step()
        for _ in range(self.chance.randint(0, len(self.operator.posted))):
            self.operator.carry_out(self.chance.randrange(len(self.operator.posted)))
        self.run_pods()

    def run_pods(self) -> None:
        for name, pod in self.pods.bound().items():
            if pod.status.phase == "Pending":
                self.pods.set_phase(name, "Running")
            elif pod.status.phase == "Running" and self.works(pod):
                self.ages[name] = self.ages.get(name, 0) + 1
                if self.ages[name] > 12:
                    self.pods.set_phase(name, "Succeeded")

    def works(self, pod: objects.Pod) -> bool:
        """Whether it has all that it needs: most gangs can do nothing without the last of their members."""
        gang = pod.metadata.labels[names.GANG_NAME]
        if gang in INDEPENDENT:
            return True
        pods = self.pods.by_name.values()
        return all(one.spec.node_name for one in pods if one.metadata.labels[names.GANG_NAME] == gang)

    def lose_the_operator(self) -> None:
        """It is killed. Some of its last writes arrive all the same, and nobody hears of them."""
        for _, do in self.operator.posted:
            if self.chance.random() < 0.4:
                done(do, self.pods)
        if self.chance.random() < 0.3:
            for _ in range(15):  # it takes long until the next one is there
                self.run_pods()
        self.operator = Operator(self.pods, self.operator.now_s)

    def check(self) -> None:
        """No GPU has two pods."""
        alive = [pod for pod in self.pods.bound().values() if pod.status.phase not in OVER]
        for one, other in combinations(alive, 2):
            assert not cards(one) & cards(other), (one.metadata.name, other.metadata.name)


def cards(pod: objects.Pod) -> set[tuple[str, int]]:
    return {(pod.spec.node_name, gpu) for gpu in read_gpus(pod.metadata.annotations)}


@pytest.mark.parametrize("seed", range(8))
def test_all_gangs_finish_however_often_the_operator_is_lost(seed):
    """Given gangs for which there is no room at once, operators that are lost while they bind stop nobody."""
    story, losses = Story(seed), 0
    for _ in range(LONGEST):
        story.go_on()
        story.check()
        is_binding = any(key.startswith(BIND) for key, _ in story.operator.posted)
        if losses < 25 and is_binding and story.chance.random() < 0.5:
            story.lose_the_operator()
            losses += 1
        if story.is_done:
            break
    assert story.is_done
    assert losses >= 3
