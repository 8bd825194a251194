"""A running engine over an instant machine, with a real store, and the app on top of it."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from batuta.api.app import create_app
from batuta.api.dependencies import NodeFacts, NoNodeFacts, ServerDependencies
from batuta.api.scheduler_counters import SchedulerCounters
from batuta.bootstrap.offline import account
from batuta.core import event as ev
from batuta.core.cluster import Node
from batuta.core.world import World
from batuta.engine.journal import JournaledWorld
from batuta.engine.loop import Cadence, Engine, Live
from batuta.engine.ports import Journal
from batuta.engine.profile import find_policy, profile_for
from batuta.engine.requests import Requests
from batuta.engine.service import RetryingJournal, Service
from batuta.report.gpu_usage_page import render_usage
from batuta.spec.task_paths import PathRules
from batuta.store.records import Role, hash_of
from batuta.store.store import SqliteStore
from tests.support.live_backend import InstantBackend, PlainFiles

POLICIES = (("fifo", "in order of arrival"), ("elastic-fifo", "in order of arrival, sizes follow the load"))
NODES = tuple(Node(f"node-{k}", 4, "virtual", rack="rack-0") for k in range(2))


@dataclass(slots=True)
class LiveService:
    """Everything, for tests to look into."""

    service: Service
    store: SqliteStore
    backend: InstantBackend
    files: PlainFiles
    parts: ServerDependencies
    app: FastAPI
    tokens: dict[str, str] = field(default_factory=dict)
    """By user: ana is an admin, ben and eva are users, vic a viewer."""
    shutdowns: list[bool] = field(default_factory=list)

    def headers(self, user: str = "ana") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[user]}"}

    def hash_of(self, user: str) -> str:
        return hash_of(self.tokens[user])


@contextmanager
def live_service(
    folder: Path,
    *,
    nodes: Sequence[Node] = NODES,
    events: Sequence[ev.Event] = (),
    policy: str = "elastic-fifo",
    journal_of: Callable[[SqliteStore], Journal] = lambda store: store.journal,
    facts: NodeFacts | None = None,
    cadence: Cadence = Cadence(),  # noqa: B008  (frozen)
    **parts: Any,
) -> Iterator[LiveService]:
    """An engine that runs. `events` happened before; `parts` are said over the usual ones."""
    folder.mkdir(parents=True, exist_ok=True)
    with SqliteStore(folder / "journal.db") as store:
        world = store.recover().world
        if not world.nodes.nodes:
            _open(world, store, nodes, events)
        backend, files, cycles = InstantBackend(), PlainFiles(folder), SchedulerCounters()
        requests, guard = Requests(backend.wake), threading.RLock()
        journal = RetryingJournal(journal_of(store))
        live = Live(requests, profile_for, guard)
        rules = profile_for(world.policy or policy)
        engine = Engine(JournaledWorld(world, journal), backend, rules, cycles, cadence, live)
        service = Service(engine, requests, journal, guard, backend.wake)
        shutdowns: list[bool] = []
        given: dict[str, Any] = {
            "cycles": cycles,
            "nodes": facts or NoNodeFacts(),
            "version": "0.0-test",
            "virtual": True,
            "static": folder / "no-dashboard",
            "paths": PathRules(None, folder),
            "account": lambda from_s, to_s: account(store.journal, store.snapshots, from_s, to_s, time.time()).plain(),
            "account_page": render_usage,
        }
        made = ServerDependencies(
            *(service, store, files, policy, POLICIES, find_policy, profile_for, shutdowns.append),
            **(given | parts),
        )
        tokens = {
            user: store.tokens.create(user, role, time.time())
            for user, role in (
                *(("ana", Role.ADMIN), ("ben", Role.USER)),
                *(("eva", Role.USER), ("vic", Role.VIEWER)),
            )
        }
        service.start()
        try:
            yield LiveService(service, store, backend, files, made, create_app(made), tokens, shutdowns)
        finally:
            assert service.stop(), "the engine did not stop"


def _open(world: World, store: SqliteStore, nodes: Sequence[Node], events: Sequence[ev.Event]) -> None:
    JournaledWorld(world, store.journal).record_all((*(ev.NodeAdded(0.0, node) for node in nodes), *events))
