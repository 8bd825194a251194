"""A rank that is slower than the others is named, and the job leaves its node when that pays."""

from pathlib import Path
from typing import Any

from tests.support.cli_server import Cli
from tests.support.held_up_jobs import held_up, launch, nodes_of, small_nodes, story


def health_of_nodes(cli: Cli) -> dict[str, Any]:
    return {node["name"]: node["health"] for node in cli.json("nodes")}


def step_of(cli: Cli, job: str) -> int:
    return (cli.json("status", job)["progress"] or {}).get("step") or 0


def test_a_slow_rank_is_named_and_the_job_goes_on_without_its_node(tmp_path: Path):
    with small_nodes(tmp_path, 5) as cli:
        job = launch(cli, "slow", ill_rank=2)
        cli.wait(job, "RUNNING")
        before = nodes_of(cli, job)
        ill = before[2]
        (told, *_) = cli.until(lambda: held_up(cli, job), bool)
        numbers = dict(told["evidence"])
        assert (told["reason"], told["ranks"]) == ("STRAGGLER", [2])
        assert (told["nodes"], told["avoid"]) == ([ill], [ill])
        assert (numbers["rank"], numbers["ranks"]) == (2, 4)
        assert 2.0 < numbers["slowdown"] < 4.0
        assert numbers["gain_s"] > numbers["cost_s"]
        cli.until(lambda: nodes_of(cli, job), lambda nodes: len(nodes) == 4 and ill not in nodes)
        cli.wait(job, "RUNNING")
        assert any("a straggler: rank 2 of 4" in one and f"{ill} is to blame" in one for one in story(cli, job))
        assert "a straggler" in cli.ok("events", "--job", job)
        cli.until(lambda: health_of_nodes(cli), lambda nodes: (nodes[ill] or {}).get("state") == "suspect")
        # It goes on from its checkpoint, and nobody is slow any more.
        reached = step_of(cli, job)
        assert reached > 10
        cli.until(lambda: step_of(cli, job), lambda step: step > reached + 100)
        assert len(held_up(cli, job)) == 1
