"""What an agent tells of figures: what has changed, and no more often than that."""

import asyncio

from batuta.backends.kube.health.annotations import read_figures
from batuta.bootstrap.agent_health import HealthFiguresPublisher
from batuta.core.health_signals import Figure, Values


class Node:
    """GPUs as NVML has them, and the annotation that an agent makes of them."""

    def __init__(self) -> None:
        self.gpus: dict[int, Values] = {}
        self.texts: list[str] = []

    async def publish(self, text: str) -> int:
        self.texts.append(text)
        return 0

    def told(self, *looks: dict[int, Values]) -> list[dict[int, dict[Figure, int]]]:
        """What is written, one look after the other."""
        teller = HealthFiguresPublisher(lambda: self.gpus, self.publish)

        async def look_at_all() -> None:
            for self.gpus in looks:
                await teller.turn()

        asyncio.run(look_at_all())
        return [read_figures(text) for text in self.texts]


def test_what_has_not_changed_is_not_written_again():
    well: dict[int, Values] = {0: {Figure.LOST: 0}, 1: {Figure.LOST: 0}}
    lost: dict[int, Values] = {**well, 1: {Figure.LOST: 1}}
    assert Node().told(well, well, lost, lost, well) == [well, lost, well]


def test_nothing_is_written_where_nvml_says_nothing():
    assert Node().told({}, {}) == []


def test_a_temperature_is_told_when_it_has_moved():
    looks: list[dict[int, Values]] = [{0: {Figure.TEMPERATURE: c}} for c in (60, 61, 62, 63, 62, 96, 95)]
    told = Node().told(*looks)
    assert [one[0][Figure.TEMPERATURE] for one in told] == [60, 63, 96]
