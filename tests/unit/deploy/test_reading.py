"""Values from files and --set: Helm's way of laying them over each other, and every problem at once."""

from pathlib import Path

import pytest

from batuta.backends.kube.install.release import read_values
from batuta.spec.problem import InputError


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "values.yaml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_without_anything_the_defaults_hold():
    values = read_values([], [])
    assert (values.replicas, values.config.policy) == (2, "rent")


def test_later_files_win_and_set_wins_over_all(write):
    first = write("replicas: 3\nconfig: {policy: fifo, gangTimeoutSeconds: 60}\n", "a.yaml")
    second = write("config: {policy: srjf}\n", "b.yaml")
    values = read_values([first, second], ["replicas=5"])
    assert (values.replicas, values.config.policy, values.config.gang_timeout_seconds) == (5, "srjf", 60)


@pytest.mark.parametrize(
    ("setting", "read"),
    [
        ("replicas=1", lambda values: values.replicas == 1),
        ("podDisruptionBudget.enabled=false", lambda values: values.pod_disruption_budget.enabled is False),
        ("namespaces=[team-a, team-b]", lambda values: values.namespaces == ["team-a", "team-b"]),
        ("image.tag='1.0'", lambda values: values.image.tag == "1.0"),
        (
            r"nodeSelector.kubernetes\.io/os=linux",
            lambda values: values.node_selector["kubernetes.io/os"] == "linux",
        ),
        ("resources.requests.cpu=2", lambda values: values.resources.requests["memory"] == "512Mi"),
        ("resources.limits=null", lambda values: values.resources.limits == {}),
        ("image.tag=", lambda values: values.image.tag == ""),
    ],
)
def test_a_setting_is_read_as_yaml(setting, read):
    assert read(read_values([], [setting]))


def test_all_problems_come_at_once_with_their_places(write):
    file = write("replicas: two\nconfig:\n  polcy: fifo\n")
    with pytest.raises(InputError) as caught:
        read_values([file], ["service.port=99999"])
    found = {(problem.file, problem.line, problem.column): str(problem) for problem in caught.value.problems}
    assert set(found) == {(str(file), 1, 11), (str(file), 3, 10), ("--set", 0, 0)}
    assert "did you mean policy?" in found[str(file), 3, 10]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("replicas", "is not NAME=VALUE"),
        ("=1", "is not NAME=VALUE"),
        ("a..b=1", "empty part"),
        ("namespaces[0]=a", "an entry of a list cannot be set"),
        ("namespaces=[a", "the value is not YAML"),
        ("replicas=null", "replicas"),
        ("unknown=1", "unknown key unknown"),
    ],
)
def test_a_bad_setting_is_refused(setting, said):
    with pytest.raises(InputError, match=said):
        read_values([], [setting])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a\n", "is not a mapping"),
        ("replicas: 1\nreplicas: 2\n", "replicas stands here twice"),
        ("config: {policy: a\n", "is not YAML"),
        ("", "is empty"),
        ("journal: 7\n", "journal"),
    ],
)
def test_a_bad_file_is_refused(write, text, said):
    with pytest.raises(InputError, match=said):
        read_values([write(text)], [])


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_values([tmp_path / "none.yaml"], [])
