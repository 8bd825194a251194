"""What becomes of gangs, from the API server's side: who is bound when, and whether GPUs are given twice."""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException

from batuta.backends.kube import names
from tests.support.kube.api import ApiError, Json
from tests.support.kube.pods import Pods


@dataclass
class Seen:
    """One gang, as far as it has been seen."""

    size: int
    bound: set[str] = field(default_factory=set)
    """Members that have or had a node, by uid."""
    over: set[str] = field(default_factory=set)
    since_s: float = 0.0
    """When the first was bound."""
    partly_s: float = 0.0
    """How long only a part was bound."""

    @property
    def is_partly_bound(self) -> bool:
        return 0 < len(self.bound) < self.size


class GangWatch:
    """Watches the pods of a namespace in a thread of its own, until the block ends."""

    def __init__(self, pods: Pods, sizes: dict[str, int]) -> None:
        self.gangs = {name: Seen(size) for name, size in sizes.items()}
        self.doubles: list[tuple[str, str, str, str]] = []
        """GPUs that were given to a pod while another one had them: node, GPU, pod, other pod."""
        self._pods = pods
        self._holder: dict[tuple[str, str], str] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ended = threading.Event()

    def __enter__(self) -> "GangWatch":
        self._version = self._pods.cluster.api.get(self._pods.path)["metadata"]["resourceVersion"]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    @property
    def unfinished(self) -> list[str]:
        return [name for name, gang in self.gangs.items() if len(gang.over) < gang.size]

    def longest_partly_s(self) -> float:
        """The longest time for which only a part of a gang was bound."""
        now_s = time.monotonic()
        return max(now_s - gang.since_s if gang.is_partly_bound else gang.partly_s for gang in self.gangs.values())

    def _run(self) -> None:
        """Watches again from a list when a watch ends: the server ends it, or nothing happens for long."""
        api = self._pods.cluster.api
        while not self._ended.is_set():
            with suppress(OSError, HTTPException, ApiError):
                for event in api.watch(self._pods.path, self._version, timeout_s=300):
                    if self._ended.is_set():
                        return
                    self._take(event["type"], event["object"])
            with suppress(OSError, HTTPException, ApiError):
                listed = api.get(self._pods.path)
                self._version = listed["metadata"]["resourceVersion"]
                for pod in listed["items"]:
                    self._take("MODIFIED", pod)

    def _take(self, did: str, pod: Json) -> None:
        meta, node = pod["metadata"], pod["spec"].get("nodeName", "")
        gang = self.gangs.get(meta.get("labels", {}).get(names.GANG_NAME, ""))
        if gang is None or not node:
            return
        uid = meta["uid"]
        cards = [(node, gpu) for gpu in meta.get("annotations", {}).get(names.GPUS, "").split(",")]
        self._note_bound(gang, uid)
        if did == "DELETED" or pod["status"]["phase"] in ("Succeeded", "Failed"):
            gang.over.add(uid)
            for card in cards:
                if self._holder.get(card) == uid:
                    del self._holder[card]
            return
        for card in cards:
            holder = self._holder.setdefault(card, uid)
            if holder != uid:
                self.doubles.append((*card, uid, holder))

    def _note_bound(self, gang: Seen, uid: str) -> None:
        if uid not in gang.bound:
            now_s = time.monotonic()
            gang.since_s = gang.since_s if gang.bound else now_s
            gang.bound.add(uid)
            gang.partly_s = now_s - gang.since_s
