"""Virtual GPUs without a type of their own stand for every type that a task asks for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli_server import Cli

NOTE = "virtual GPUs stand for"


@pytest.mark.parametrize(
    ("accelerators", "types", "per_node"),
    [
        ("V100:1", "V100", 1),
        ("A100-80GB:4", "A100-80GB", 4),
        ("{H100: 4}", "H100", 4),
        ("{L4:2, A10G:2}", "L4 or A10G", 2),
        ("[V100:8, A100:4]", "A100", 4),
        ("tpu-v5e:0.5", "tpu-v5e", 1),
    ],
)
def test_any_type_runs_on_virtual_gpus_of_no_type_with_a_note(cli, accelerators, types, per_node):
    (cli.cwd / "task.yaml").write_text(
        f"name: typed\nresources: {{accelerators: {accelerators}}}\nrun: echo $SKYPILOT_NUM_GPUS_PER_NODE\n"
    )
    done = cli.run("launch", "task.yaml")
    assert (done.returncode, done.stdout) == (0, f"{per_node}\n"), done.stderr
    assert f"note: {NOTE} {types}\n" in done.stderr


def test_the_alternatives_of_any_of_are_stood_for_as_well(cli):
    (cli.cwd / "task.yaml").write_text(
        "resources:\n  any_of:\n  - {infra: aws, accelerators: H100:16}\n"
        "  - {infra: gcp, accelerators: A100:2}\nrun: echo ran\n"
    )
    done = cli.run("launch", "task.yaml")
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    assert f"{NOTE} A100\n" in done.stderr


def test_dryrun_status_and_explain_say_what_is_stood_for(cli):
    (cli.cwd / "task.yaml").write_text("resources: {accelerators: V100:2}\nrun: sleep 300\n")
    assert f"{NOTE} V100" in cli.ok("launch", "task.yaml", "--dryrun")
    job = cli.launch("task.yaml")
    assert cli.json("status", job)["stands_for"] == ["V100"]
    assert f"{NOTE} V100" in cli.ok("status", job)
    assert f"{NOTE} V100" in cli.ok("explain", job)


def test_a_type_that_the_nodes_have_and_no_type_at_all_need_no_note(cli):
    for given in (["--gpus", "virtual:1"], ["--gpus", "2"]):
        done = cli.run("launch", *given, "--", "true")
        assert done.returncode == 0, done.stderr
        assert NOTE not in done.stderr


def test_more_gpus_than_a_virtual_node_has_are_refused_with_the_way_to_a_larger_one(cli):
    done = cli.run("launch", "--gpus", "V100:8", "--", "true")
    assert done.returncode == 2
    assert "needs 8 GPUs on each node; the largest node has 4" in done.stderr
    assert "batuta up --virtual 1x8" in done.stderr


@pytest.fixture(scope="module")
def typed_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("typed")
    cli = Cli(folder / "home", folder)
    started = cli.run("up", "--virtual", "1x8:A100", "--port", "0", "-d")
    assert started.returncode == 0, started.stderr
    yield folder / "home"
    assert cli.run("down").returncode == 0


def test_virtual_gpus_with_a_type_refuse_another_one(typed_home, tmp_path):
    cli = Cli(typed_home, tmp_path)
    assert [(len(node["gpus"]), node["gpu_type"]) for node in cli.json("nodes")] == [(8, "A100")]
    refused = cli.run("launch", "--gpus", "V100:1", "--", "true")
    assert refused.returncode == 2
    assert "no node has a GPU of type V100" in refused.stderr
    accepted = cli.run("launch", "--gpus", "a100:8", "--", "true")
    assert accepted.returncode == 0, accepted.stderr
    assert NOTE not in accepted.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["2x4"], "2x4: a shape is for virtual GPUs"),
        (["--virtual", "2by4"], "'2by4' is not a group of nodes"),
        (["--virtual", "2x4:A100,1x8:H100"], "has nodes that differ"),
        (["--virtual", "2x4", "--gpus", "8"], "2x4 and --gpus say the same"),
    ],
)
def test_a_shape_that_means_nothing_is_refused(nobody, arguments, complaint):
    done = nobody.run("up", *arguments)
    assert done.returncode == 2
    assert complaint in done.stderr
