"""An operator that watches the ConfigMap of its configuration, as the chart installs it."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from batuta.backends.kube.operator_config import CONFIG_FILE
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.operator_process import NAMESPACE, RELEASE, OperatorProcess, grant
from tests.support.kube.unified import Jobs

CONFIG_MAP = f"{RELEASE}-config"
PATH = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{CONFIG_MAP}"


@dataclass
class Settings:
    """The ConfigMap, and operators whose files have what it said first."""

    cluster: ControlPlane
    folder: Path
    config: dict[str, Any] = field(default_factory=lambda: {"policy": "elastic-fifo", "configMap": CONFIG_MAP})
    is_created: bool = False

    def create(self, text: str) -> None:
        labels = {"app.kubernetes.io/part-of": "batuta"}
        metadata = {"name": CONFIG_MAP, "namespace": NAMESPACE, "labels": labels}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        self.cluster.apply([body | {"data": {CONFIG_FILE: text}}])
        self.is_created = True

    def operator(self, identity: str = "one", *, elect: bool = False, **more: Any) -> OperatorProcess:
        account: Path = grant(self.cluster)
        config: dict[str, Any] = self.config | more
        made = OperatorProcess(
            self.cluster, self.folder, kubeconfig=account, elect=elect, identity=identity, tls=False, **config
        )
        if not self.is_created:
            self.create((self.folder / f"{identity}.yaml").read_text())
        return made

    @property
    def text(self) -> str:
        text: str = self.cluster.api.get(PATH)["data"][CONFIG_FILE]
        return text

    def edit(self, **changes: Any) -> None:
        """What an administrator does with kubectl."""
        self.write(yaml.safe_dump(yaml.safe_load(self.text) | changes))

    def write(self, text: str) -> None:
        patch = json.dumps({"data": {CONFIG_FILE: text}})
        self.cluster.kubectl("-n", NAMESPACE, "patch", "configmap", CONFIG_MAP, "--type=merge", "-p", patch)

    def told(self) -> dict[str, list[str]]:
        """Notes of the Events about the ConfigMap, by reason."""
        found: dict[str, list[str]] = {}
        for event in self.cluster.api.items(f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"):
            if event["regarding"]["name"] == CONFIG_MAP:
                found.setdefault(event["reason"], []).append(event["note"])
        return found

    def journal(self, kind: str, identity: str = "one") -> list[dict[str, Any]]:
        """The events of a kind in an operator's journal."""
        path = self.folder / f"{identity}-state" / "journal.db"
        if not path.exists():
            return []
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            bodies = [json.loads(body) for (body,) in database.execute("SELECT body FROM events ORDER BY seq")]
        return [body for body in bodies if body["type"] == kind]


@pytest.fixture
def settings(prepared: ControlPlane, tmp_path: Path) -> Iterator[Settings]:
    made = Settings(prepared, tmp_path)
    yield made
    prepared.api.delete(PATH)
    for event in prepared.api.items(f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"):
        if event["regarding"]["name"] == CONFIG_MAP:
            prepared.api.delete(f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events/{event['metadata']['name']}")


@pytest.fixture
def operator(settings: Settings) -> Iterator[OperatorProcess]:
    with settings.operator() as running:
        yield running


@pytest.fixture
def jobs(operator: OperatorProcess, cluster: ControlPlane, namespace: str) -> Jobs:
    return Jobs(cluster, namespace)
