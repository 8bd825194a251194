"""The next writes that bring the children of a job to what its type wants.

Level-triggered: called again after every change, it says less and less, and in the end nothing.

- Members of another start go first; nothing of a new start is created while one of them is there. Old members
  may still be saving their work.
- A member too many is deleted after the lists of members have been written.
- What others have made of a Job or MPIJob (another size, suspended) is put right.
- An indexed Job of another start is suspended, and changed when it has no pods any more; one that is over, or
  whose template has changed, is replaced. So are launchers and MPIJobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from batuta.backends.kube import names
from batuta.backends.kube.jobtypes.job_type import POD, Child, ChildKind, Manifest, Observed, Run, Update
from batuta.backends.kube.jobtypes.status import OVER, ending, is_suspended
from batuta.backends.kube.objects import Batch, Meta, Pod

Key: TypeAlias = tuple[ChildKind, str]
_NOTHING: Mapping[Key, str] = {}


@dataclass(frozen=True, slots=True)
class Create:
    """A child that is not there."""

    child: Child


@dataclass(frozen=True, slots=True)
class Apply:
    """A child that is written over, whether it is there or not (server-side apply)."""

    child: Child


@dataclass(frozen=True, slots=True)
class Patch:
    """A merge patch of one that is there."""

    kind: ChildKind
    name: str
    body: Manifest


@dataclass(frozen=True, slots=True)
class Delete:
    """One that is there, and no other of the same name; with what it has made, which goes first."""

    kind: ChildKind
    name: str
    uid: str

    @property
    def propagation(self) -> str:
        """A Job stays, marked, until its pods are gone: so it can be waited for."""
        return "Background" if self.kind is POD else "Foreground"


Write: TypeAlias = Create | Apply | Patch | Delete


def next_writes(
    children: Sequence[Child], observed: Observed, run: Run, applied: Mapping[Key, str] = _NOTHING
) -> list[Write]:
    """What to write now. `applied` has the hash of what was last applied, for kinds that are not watched."""
    wanted = {(child.kind, child.name): child for child in children}
    applies: list[Write] = [
        Apply(child) for key, child in wanted.items() if child.update is Update.APPLY and applied.get(key) != child.hash
    ]
    pods = _pod_deletions(wanted, observed.pods, run)
    batches, waits = _batch_writes(wanted, observed, run)
    if applies and not _has_old(observed.pods, run):
        # Lists of members first; who is to go is deleted when these have been written.
        pods = []
    if waits or _has_old(observed.pods, run):
        return [*applies, *batches, *pods]
    return [*applies, *_creations(wanted, observed), *batches, *pods]


def _pod_deletions(wanted: Mapping[Key, Child], pods: Sequence[Pod], run: Run) -> list[Write]:
    """Members of another start, and those too many; never the pods of other controllers."""
    return [
        Delete(POD, pod.metadata.name, pod.metadata.uid)
        for pod in pods
        if _is_own(pod.metadata)
        and not pod.metadata.deletion_timestamp
        and (_is_old(pod.metadata, run) or (POD, pod.metadata.name) not in wanted)
    ]


def _batch_writes(wanted: Mapping[Key, Child], observed: Observed, run: Run) -> tuple[list[Write], bool]:
    """Writes to Jobs and MPIJobs, and whether one of another start has to be waited for."""
    writes: list[Write] = []
    waits = False
    for kind, batch in observed.objects:
        meta = batch.metadata
        child = wanted.get((kind, meta.name))
        if not _is_own(meta) or (child is not None and _is_as_written(child, batch)):
            continue
        if meta.deletion_timestamp:
            waits = True
        elif child is not None and child.update is Update.HALT:
            write, wait = _halt_or_resume(child, batch, observed, run)
            writes += [write] if write is not None else []
            waits = waits or wait
        elif child is None or _is_old(meta, run):
            writes.append(Delete(kind, meta.name, meta.uid))
            waits = True
        elif child.resume is not None:
            writes.append(Patch(kind, meta.name, child.resume))
    return writes, waits


def _is_as_written(child: Child, batch: Batch) -> bool:
    """Whether it is what was written last, and no other has changed how large it is, or that it runs."""
    if child.hash != batch.metadata.annotations.get(names.MANIFEST):
        return False
    return holds(batch.spec, (child.resume or {}).get("spec", {}))


def holds(there: Any, wanted: Any) -> bool:
    """Whether all that is wanted is there; what is there beyond it are defaults of the API server."""
    if isinstance(wanted, dict):
        return isinstance(there, dict) and all(holds(there.get(key), one) for key, one in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(there, list) or len(there) != len(wanted):
            return False
        return all(holds(one, other) for one, other in zip(there, wanted, strict=True))
    # The API server writes a number where a quantity is one, and we write texts.
    return there == wanted or (there is not None and str(there) == str(wanted))


def _halt_or_resume(child: Child, batch: Batch, observed: Observed, run: Run) -> tuple[Write | None, bool]:
    meta = batch.metadata
    old, template = _is_old(meta, run), child.manifest["metadata"]["annotations"].get(names.TEMPLATE)
    if ending(batch) is not None and not old:
        return None, False  # it tells how the run ended
    has_other_template = template != meta.annotations.get(names.TEMPLATE)
    if old and (ending(batch) is not None or has_other_template or batch.status.get("succeeded")):
        # It cannot run again, or not as it should: with another template, or with all of its replicas.
        return Delete(child.kind, meta.name, meta.uid), True
    if not old:
        return Patch(child.kind, meta.name, child.resume or {}), False
    if not is_suspended(batch):
        return Patch(child.kind, meta.name, child.halt or {}), True
    if _is_active(batch, observed):
        return None, True
    return Patch(child.kind, meta.name, child.resume or {}), False


def _is_active(batch: Batch, observed: Observed) -> bool:
    """Whether a suspended one still has pods, by its own word or by the pods that are there."""
    status = batch.status
    if status.get("active") or status.get("terminating") or status.get("startTime"):
        return True
    start = batch.metadata.labels.get(names.START)
    return any(pod.metadata.labels.get(names.START) == start and pod.status.phase not in OVER for pod in observed.pods)


def _creations(wanted: Mapping[Key, Child], observed: Observed) -> list[Write]:
    there = {(kind, one.metadata.name) for kind, one in observed.objects}
    there |= {(POD, pod.metadata.name) for pod in observed.pods}
    return [
        Create(child)
        for key, child in wanted.items()
        if child.update is not Update.APPLY and key not in there and not child.only_change
    ]


def _has_old(pods: Sequence[Pod], run: Run) -> bool:
    """Whether members of another start are there. What is over and another controller's holds nothing."""
    return any(_is_old(pod.metadata, run) and (_is_own(pod.metadata) or pod.status.phase not in OVER) for pod in pods)


def _is_old(meta: Meta, run: Run) -> bool:
    return meta.labels.get(names.START) != str(run.start)


def _is_own(meta: Meta) -> bool:
    """Whether the UnifiedJob itself controls it, and not a Job or MPIJob between them."""
    return any(owner.controller and owner.kind == names.KIND for owner in meta.owner_references)
