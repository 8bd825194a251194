"""One composition for local server and operator: what a start records, and who applies events."""

import ast
from pathlib import Path

import pytest

from batuta.core import event as ev
from batuta.core.job import JobId
from batuta.core.world import World
from batuta.engine.assembly import Assembly, AssemblyOptions
from batuta.engine.observers import Observer
from batuta.engine.profile import profile_for
from batuta.engine.retention import Keep
from batuta.store.store import SqliteStore
from tests.support.live_backend import InstantBackend
from tests.support.local_replicas import wait_until
from tests.support.worlds import make_job, make_nodes

SRC = Path(__file__).resolve().parents[3] / "src" / "batuta"
OWNERS = {
    "core/apply.py": "defines it",
    "engine/journal.py": "the World of an engine, and one that is rebuilt to prove a journal",
    "store/store.py": "a World that is rebuilt before an engine owns it",
    "engine/suggest.py": "a fork, for a suggestion",
    "api/routes/forecasts.py": "a fork, for a what-if question",
    "backends/sim/forecast/projection.py": "a fork, for a forecast",
    "backends/sim/forecast/replay.py": "a World of its own, for a replay",
    "bootstrap/offline.py": "a World of its own, for a replay",
    "report/gpu_usage.py": "a World of its own, for a report",
}
"""Every file that applies events, and to whose World."""


def test_only_the_owner_of_a_world_applies_events_to_it() -> None:
    found = {
        str(path.relative_to(SRC))
        for path in SRC.rglob("*.py")
        if "apply(" in (text := path.read_text())  # to parse all files takes seconds
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "apply"
    }
    assert found | {"core/apply.py"} == set(OWNERS)


def assemble(store: SqliteStore, **chosen: str) -> Assembly:
    return Assembly(store, AssemblyOptions(profile_for, "fifo", keep=Keep(jobs=1), **chosen))


def types_in(store: SqliteStore) -> list[str]:
    return [type(entry.event).__name__ for entry in store.journal.all_after(0)]


def test_what_a_start_is_told_is_recorded_once_and_found_again(tmp_path: Path) -> None:
    # given a first start with a node and a policy
    with SqliteStore(tmp_path / "journal.db") as store:
        first = assemble(store, policy="elastic-fifo")
        first.start(5.0, [ev.NodeAdded(5.0, node) for node in make_nodes(4)])
        assert (first.policy, first.world.now_s) == ("elastic-fifo", 5.0)
        assert types_in(store) == ["NodeAdded", "PolicySet"]
    # when another one begins on the same journal and is told of no policy, or of the same
    for policy in ("", "elastic-fifo"):
        with SqliteStore(tmp_path / "journal.db") as store:
            again = assemble(store, policy=policy)
            again.start(9.0)
            # then the journal's policy decides, and nothing is written down twice
            assert (again.policy, again.world.nodes.nodes[0].gpus) == ("elastic-fifo", 4)
            assert types_in(store) == ["NodeAdded", "PolicySet"]


def test_a_policy_of_another_start_takes_over_and_the_default_needs_no_event(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "journal.db") as store:
        assembly = assemble(store)
        assembly.start(1.0)
        assert (assembly.policy, types_in(store)) == ("fifo", [])
    with SqliteStore(tmp_path / "journal.db") as store:
        other = assemble(store, policy="srjf")
        other.start(2.0)
        assert (other.policy, types_in(store)) == ("srjf", ["PolicySet"])


class Broken(Observer):
    def saw(self, world: World, event: ev.Event) -> None:
        raise ZeroDivisionError("oh")


@pytest.mark.parametrize("fails", [False, True])
def test_a_server_decides_forgets_and_ends_also_when_an_observer_fails(tmp_path: Path, fails: bool) -> None:
    # given an engine on a backend, with an observer that may fail
    store, forgotten = SqliteStore(tmp_path / "journal.db"), list[JobId]()
    assembly = assemble(store)
    assembly.start(1.0, [ev.NodeAdded(1.0, node) for node in make_nodes(4)])
    backend = InstantBackend()
    requests = assembly.attach(backend)
    service = assembly.build([], [("observer", Broken() if fails else Observer())], forgotten.append)
    service.start()

    # when two jobs come, run and end, of which one is kept
    def run_to_its_end(job: JobId) -> None:
        requests.ask(lambda world: [ev.JobSubmitted(world.now_s, make_job(job, 4))]).result(30)
        wait_until(lambda: job in backend.running, what=f"job {job} runs")
        backend.end(job)
        wait_until(lambda: job not in assembly.world.jobs, what=f"job {job} is over")

    run_to_its_end("a")
    run_to_its_end("b")
    closed: list[str] = []
    assembly.end([("jobs", lambda: closed.append("jobs"))])
    # then all is in the journal, what stands around the engine is closed, and the failure is counted
    assert closed == ["jobs"]
    assert ("observer" in assembly.fence.troubles) is fails
    with SqliteStore(tmp_path / "journal.db") as again:
        assert again.recover().world.past.keys() >= {"b"}
