"""Who may do what, and what people are told when something is not there: one sentence, no traceback."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from batuta.backends.kube import names
from tests.kube.cli.command_line import TASK, Batuta, Said, batuta
from tests.kube.conftest import AddNodes
from tests.support.chart import rights_of
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import NAMESPACE, OperatorProcess
from tests.support.kube.ports import free_ports

Person = Callable[..., Batuta]


@pytest.fixture
def person(cluster: ControlPlane, namespace: str, operator: OperatorProcess) -> Person:
    """Gives a person roles of the chart in the namespace."""
    chart = {"fullnameOverride": "cli", "rbac": {"create": False, "userRoles": True}}
    cluster.apply([one for one in rights_of(chart, NAMESPACE) if one["kind"] == "ClusterRole"])

    def make(*roles: str) -> Batuta:
        for role in roles:
            cluster.apply(_binding(role, namespace))
        return Batuta(cluster.kubeconfig("ana", (), namespace))

    return make


def _binding(role: str, namespace: str) -> dict[str, object]:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": f"ana-{role}", "namespace": namespace},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "ana"}],
    }


def _role(name: str, verbs: list[str]) -> dict[str, object]:
    """A role with these rights on UnifiedJobs and no others."""
    rule = {"apiGroups": [names.GROUP], "resources": [names.PLURAL], "verbs": verbs}
    kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
    return kind | {"metadata": {"name": name}, "rules": [rule]}


def is_one_sentence(said: Said, code: int = 1) -> bool:
    return said.code == code and said.err.startswith("error: ") and said.err.count("\n") == 1


def test_who_may_edit_jobs_in_a_namespace_needs_nothing_more(
    person: Person, namespace: str, add_nodes: AddNodes, tmp_path: Path
) -> None:
    add_nodes(1, NodeShape(gpus=4))
    ana = person("cli-edit")
    (tmp_path / "task.yaml").write_text(TASK)
    assert ana("launch", str(tmp_path / "task.yaml"), "-d").code == 0
    found = ana.waits_for("train", "RUNNING", gpus=4)
    assert (found["id"], found["user"]) == (f"{namespace}/train", "ana")
    assert ana("resize", "train", "2").code == 0
    ana.waits_for("train", "RUNNING", gpus=2)
    assert "RUNNING" in ana("explain", "train").out
    assert f"namespace {namespace}" in ana("status").out
    assert ana("cancel", "train").code == 0
    ana.waits_for("train", "CANCELLED")


def test_what_a_person_may_not_is_told_in_one_sentence(person: Person, tmp_path: Path) -> None:
    ana = person("cli-edit")
    (tmp_path / "task.yaml").write_text(TASK)
    ana("launch", str(tmp_path / "task.yaml"), "-d")
    for words in (["nodes"], ["logs", "train", "--no-follow"], ["events"], ["nodes", "cordon", "node-0"]):
        said = ana(*words)
        assert is_one_sentence(said), (words, said)
        assert 'User "ana" cannot' in said.err
    elsewhere = batuta("--kubeconfig", str(ana.kubeconfig), "-A", "queue")
    assert is_one_sentence(elsewhere)
    assert "-n NAMESPACE" in elsewhere.err


def test_who_may_only_write_can_launch_and_is_told_what_is_missing_to_look(
    person: Person, cluster: ControlPlane, tmp_path: Path
) -> None:
    cluster.apply(_role("writer", ["create"]))
    ana = person("writer")
    (tmp_path / "task.yaml").write_text(TASK)
    assert ana("launch", str(tmp_path / "task.yaml"), "-d").code == 0
    said = ana("queue")
    assert is_one_sentence(said)
    assert "batuta-view" in said.err


def test_an_unknown_job_is_told_with_the_name_that_is_near(batuta: Batuta, tmp_path: Path) -> None:
    batuta.launch(tmp_path)
    for verb in ("status", "explain", "resize"):
        said = batuta(verb, "trian", *(["2"] if verb == "resize" else []))
        assert is_one_sentence(said, code=102)
        assert "did you mean train?" in said.err
    assert batuta("logs", "trian", "--status").code == 102
    assert batuta("cancel", "train", "other").code == 102
    assert batuta.job("train")["wish"] == "run"


def test_a_namespace_that_is_not_there_is_named(batuta: Batuta, tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text(TASK)
    said = Batuta(batuta.kubeconfig, "nowhere")("launch", str(tmp_path / "task.yaml"), "-d")
    assert is_one_sentence(said)
    assert "no namespace nowhere" in said.err


def test_verbs_that_a_cluster_cannot_serve_say_so(batuta: Batuta, tmp_path: Path) -> None:
    batuta.launch(tmp_path)
    for words in (["policy"], ["queues"], ["nodes", "drain", "node-0"]):
        assert is_one_sentence(batuta(*words)), words
    for words in (["up"], ["simulate"], ["operator"]):
        assert is_one_sentence(batuta(*words), code=2), words


def test_a_cluster_without_batuta_says_how_to_install_it(fragile: ControlPlane) -> None:
    said = Batuta(fragile.kubeconfig_path)("queue")
    assert is_one_sentence(said)
    assert "batuta install --apply" in said.err


def test_a_cluster_that_does_not_answer_is_named(cluster: ControlPlane, tmp_path: Path) -> None:
    config = yaml.safe_load(cluster.kubeconfig_path.read_text())
    (port,) = free_ports(1)
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    said = Batuta(tmp_path / "config")("queue")
    assert is_one_sentence(said)
    assert f"127.0.0.1:{port}" in said.err


def test_an_unknown_context_is_told_with_those_that_there_are(cluster: ControlPlane) -> None:
    said = batuta("--kubeconfig", str(cluster.kubeconfig_path), "--context", "prod", "queue")
    assert is_one_sentence(said)
    assert "tests" in said.err


def test_the_environment_chooses_a_cluster_too(
    batuta: Batuta, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.kube.cli.command_line import batuta as run

    job = batuta.launch(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(batuta.kubeconfig))
    monkeypatch.setenv("BATUTA_CONTEXT", "tests")
    assert run("status", job, "-o", "json").json()["id"] == job
    # Jobs of tests before this one may still be on their way out.
    assert job in [one["id"] for one in run("-A", "queue", "-o", "json").json()]
    nobody = run("queue", "--home", str(tmp_path))
    assert nobody.code == 1
    assert "batuta up" in nobody.err
