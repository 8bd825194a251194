"""The operator reads what the chart writes; what it cannot read it refuses with line and column."""

from pathlib import Path

import pytest

from batuta.backends.kube.install.chart import manifests
from batuta.backends.kube.operator_config import OperatorConfig, read_operator_config
from batuta.spec.problem import InputError
from tests.support.chart import VARIANTS, release_of


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_operator_reads_what_is_installed(variant: str, tmp_path: Path):
    release = release_of(VARIANTS[variant])
    objects = {(one["kind"], one["metadata"]["name"]): one for one in manifests(release)}
    (operator,) = (name for kind, name in objects if kind == "Deployment")
    config = objects["ConfigMap", operator.replace("-operator", "-config")]
    (tmp_path / "config.yaml").write_text(config["data"]["config.yaml"])
    found = read_operator_config(tmp_path / "config.yaml")
    assert found.policy == release.values.config.policy
    assert found.namespaces == release.values.namespaces
    assert found.queues == release.values.config.queues
    assert found.lease_name == operator


def test_what_a_file_leaves_out_has_its_default(tmp_path: Path):
    (tmp_path / "config.yaml").write_text("policy: fifo\n")
    assert read_operator_config(tmp_path / "config.yaml") == OperatorConfig(policy="fifo")


def test_every_problem_has_its_place(tmp_path: Path):
    (tmp_path / "config.yaml").write_text("policy: fifo\nqueues:\n  - quota: {A100: -1}\nleader: {}\n")
    with pytest.raises(InputError) as caught:
        read_operator_config(tmp_path / "config.yaml")
    problems = {problem.message.partition(":")[0]: problem.line for problem in caught.value.problems}
    assert problems == {"queues.0.name": 3, "queues.0.quota.A100": 3, "unknown key leader": 4}
