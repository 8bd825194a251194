"""Nodes that fall ill on a real control plane: what an agent would write, and what became of them."""

import itertools
import json
import time
from collections.abc import Sequence
from typing import Any

from batuta.backends.kube import names
from batuta.backends.kube.health.annotations import NodeNote, write_notes
from tests.support.kube.api import Json
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import NAMESPACE

RULES = """
version: 1
limits: {jobs: 3, incident: 1s, probation: 1s, longest-probation: 8s, share: 0.5}
xid:
  - {code: 31, means: MMU page fault, action: restart job}
  - {code: 48, means: double-bit ECC error, action: reset GPU}
  - {code: 79, means: GPU has fallen off the bus, action: reboot}
log:
  - {if: 'node condition KernelDeadlock=True', means: the kernel is stuck, action: reboot}
  - {if: 'invalid device ordinal', means: a GPU that the job was given is not there, action: restart job}
nvml:
  - {figure: ecc-uncorrected, means: new uncorrected memory errors, action: reset GPU}
behaviour:
  - {if: 'straggler', means: jobs run slower here than elsewhere, action: suspect}
  - {if: 'hang', means: jobs hang here, action: suspect}
"""
"""Short times, and few codes."""
CONDITION = "BatutaUnhealthy"


def pool(name: str, gpus: int = 1) -> NodeShape:
    """Nodes of a pool of their own: the guard rail counts by pool."""
    return NodeShape(gpus=gpus, labels={"tests/pool": name})


class Ward:
    """All nodes of a cluster."""

    def __init__(self, cluster: ControlPlane) -> None:
        self.cluster, self.api = cluster, cluster.api
        self._numbers = itertools.count(int(time.time() * 1000))

    def get(self, node: str) -> Json:
        return self.api.get(f"/api/v1/nodes/{node}")

    def annotate(self, node: str, **annotations: str | None) -> None:
        told = {f"batuta.dev/{key.replace('_', '-')}": text for key, text in annotations.items()}
        self.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": told}})

    def note(
        self,
        node: str,
        *codes: int,
        gpu: int | None = 0,
        owners: tuple[str, ...] = (),
        more: Sequence[NodeNote] = (),
    ) -> list[NodeNote]:
        """Writes what an agent would that has read these errors; `more`: what it wrote before them."""
        notes = [NodeNote(n=next(self._numbers), time=time.time(), code=code, gpu=gpu, owners=owners) for code in codes]
        self.annotate(node, health_notes=write_notes([*more, *notes]))
        return [*more, *notes]

    def annotations(self, node: str) -> dict[str, str]:
        found: dict[str, str] = self.get(node)["metadata"].get("annotations", {})
        return found

    def taint(self, node: str) -> str | None:
        """The value of health's taint."""
        taints = self.get(node)["spec"].get("taints", ())
        return next((one.get("value", "") for one in taints if one["key"] == names.UNHEALTHY), None)

    def shown(self, node: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.annotations(node).get(names.HEALTH, "{}"))
        return found

    def state(self, node: str) -> str:
        state: str = self.shown(node).get("node", {}).get("state", "")
        return state

    def condition(self, node: str) -> Json:
        found = self.get(node)["status"]["conditions"]
        return next((one for one in found if one["type"] == CONDITION), {})

    def events(self, node: str) -> dict[str, list[str]]:
        """Notes by reason."""
        found: dict[str, list[str]] = {}
        for event in self.api.items("/apis/events.k8s.io/v1/namespaces/default/events"):
            if event["regarding"]["kind"] == "Node" and event["regarding"]["name"] == node:
                found.setdefault(event["reason"], []).append(event["note"])
        return found

    def is_shut(self, node: str, within_s: float = 20.0) -> str:
        """Waits for the taint; its value."""
        return wait_until(lambda: self.taint(node), f"{node} to be tainted", within_s) or ""

    def becomes(self, node: str, state: str, within_s: float = 20.0) -> None:
        """Waits until the node's annotation says so; an empty state: that it is as it should be."""
        wait_until(lambda: self.state(node) == state, f"{node} to be {state or 'well'}", within_s)

    def acknowledges(self, node: str, note: NodeNote) -> None:
        def seen() -> bool:
            return int(self.annotations(node).get(names.HEALTH_SEEN, "0")) >= note.n

        wait_until(seen, f"note {note.n} of {node} to be acknowledged", 20.0)

    def burn_in(self, node: str) -> Json:
        """Waits for the pod that tests a node to run; one that is over may still be there."""

        def look() -> Json:
            pods = self.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=names.BURN_IN)
            found = (pod for pod in pods if pod["spec"].get("nodeName") == node)
            return next((one for one in found if one["status"]["phase"] == "Running"), {})

        return wait_until(look, f"a burn-in on {node}", 20.0)

    def ends(self, pod: Json, phase: str, message: str = "") -> None:
        """A burn-in is over."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/status"
        self.api.patch(path, {"status": {"phase": phase, "message": message}})
