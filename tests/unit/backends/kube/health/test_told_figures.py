"""What NVML says of a node's GPUs reaches the book once, whoever is started anew meanwhile."""

import pytest

from batuta.backends.kube import names, objects
from batuta.backends.kube.health.annotations import read_figures, write_figures
from batuta.backends.kube.health.node_reports import JobsOnNodes, NodeReportReader
from batuta.backends.kube.health.state import HealthState, from_text, to_text
from batuta.core.health_record import State, Target
from batuta.core.health_rules import Finding
from batuta.core.health_signals import Figure, Values
from batuta.gpu.health.rules import read_rules

RULES = read_rules()
GPU = Target("n", 0)


class Operator:
    """Hears a node of two GPUs, and may be started anew between."""

    def __init__(self) -> None:
        self.memory = from_text(RULES, "")
        self.found: list[Finding] = []

    def hear(self, *gpus: Values) -> list[str]:
        """The names of what is found, when NVML says this of the GPUs."""
        self.found.clear()
        annotations = {names.HEALTH_FIGURES: write_figures(dict(enumerate(gpus)))}
        node = objects.Node(
            metadata=objects.Meta(name="n", annotations=annotations),
            status=objects.NodeStatus(allocatable={"nvidia.com/gpu": "2"}),
        )
        NodeReportReader(JobsOnNodes({}, {}), ["nvidia.com/gpu"], "", self.found.append).hear(self.memory, node, 100.0)
        return [one.name for one in self.found]

    def restart(self) -> None:
        self.memory = from_text(RULES, to_text(self.memory))


@pytest.fixture
def operator() -> Operator:
    return Operator()


def test_figures_come_as_they_went():
    found = {0: {Figure.LOST: 0, Figure.TEMPERATURE: 61}, 11: {Figure.ECC_CORRECTED: 7}}
    assert read_figures(write_figures(found)) == found


@pytest.mark.parametrize("text", ["", "[]", "{", '{"0": 1}', '{"0": {"lost": "x"}}', '{"x": {"lost": 1}}'])
def test_what_is_no_figure_says_nothing(text: str):
    assert read_figures(text) == {}


def test_figures_that_nobody_knows_are_passed_over():
    assert read_figures('{"0": {"colour": 3, "lost": 1, "temperature": -4}}') == {0: {Figure.LOST: 1}}


def test_a_gpu_that_does_not_answer_any_more_is_ill_and_told_of_once(operator: Operator):
    assert operator.hear({Figure.LOST: 0}, {Figure.LOST: 0}) == []
    assert operator.hear({Figure.LOST: 1}, {Figure.LOST: 0}) == ["lost"]
    assert operator.memory.book.records[Target("n")].state is State.ILL
    assert operator.hear({Figure.LOST: 1}, {Figure.LOST: 0}) == []
    operator.restart()
    assert operator.hear({Figure.LOST: 1}, {Figure.LOST: 0}) == []


def test_memory_errors_count_once_also_those_that_came_while_nobody_led(operator: Operator):
    # given a GPU that had errors before anybody looked, and one that had none
    assert operator.hear({Figure.ECC_UNCORRECTED: 5}, {Figure.ECC_UNCORRECTED: 0}) == []
    operator.restart()
    # when both get new ones before the next operator leads
    now = ({Figure.ECC_UNCORRECTED: 7}, {Figure.ECC_UNCORRECTED: 1})
    assert operator.hear(*now) == ["ecc-uncorrected 2", "ecc-uncorrected"]
    operator.restart()
    assert operator.hear(*now) == []


def test_thousands_of_gpus_that_are_well_take_no_room():
    values: dict[str, int] = {one.value: 0 for one in Figure} | {"temperature": 60, "ecc-corrected": 9}
    memory = HealthState(from_text(RULES, "").book)
    memory.figures = {f"node-{number}": {gpu: dict(values) for gpu in range(8)} for number in range(2_000)}
    assert len(to_text(memory)) < 50_000
