"""Why: the typed reasons that plans and answers carry."""

from __future__ import annotations

import re
from enum import Enum
from typing import TypeAlias

Evidence: TypeAlias = tuple[tuple[str, float], ...]
"""Named numbers that back a reason, in the order in which people should read them."""


REPLICAS = "replicas"
"""Is part of the evidence about a CPU-only job: what counts GPUs in a sentence counts its replicas then."""
_ONE = re.compile(r"\b1 (GPU|replica|CPU)s\b")


class Reason(Enum):
    """Each has a sentence; `{name}` in it is filled from the evidence."""

    # Why a job has what it has, seen from the job.
    FULL_SIZE = "runs at its full size of {gpus:.0f} GPUs"
    WAITING_FOR_GPUS = "needs {needs:.0f} GPUs, {free:.0f} of {capacity:.0f} are left by the jobs that go first"
    HELD_BACK = "needs {needs:.0f} GPUs and {free:.0f} are free, but the policy does not start it now"
    EXCEEDS_CLUSTER = "needs {needs:.0f} GPUs, the cluster has {capacity:.0f} that it may use"
    NO_ACCEPTED_TYPE = "accepts no GPU type that the cluster has"
    QUEUE_HELD = "its queue is held"
    QUEUE_MISSING = "its queue is not there, or leads to none"
    QUEUE_LEAVES = "its queue is being removed"
    QUOTA_EXHAUSTED = (
        "needs {needs:g} GPUs, its queue has {quota_left:g} of {quota:g} left, its cohort lends {lends:g} more"
    )
    QUOTA_SHORT_OF_CPUS = (
        "needs {needs:g} CPUs, its queue has {quota_left:g} of {quota:g} left, its cohort lends {lends:g} more"
    )
    QUOTA_SHORT_OF_MEMORY = (
        "needs {needs:g} GiB of memory, its queue has {quota_left:g} of {quota:g} left, its cohort lends {lends:g} more"
    )
    QUOTA_SHORT_OF_PODS = (
        "needs {needs:g} pods, its queue has {quota_left:g} of {quota:g} left, its cohort lends {lends:g} more"
    )
    EXCEEDS_QUOTA = "needs {needs:g} GPUs, its queue can have {most:g} at most"
    EXCEEDS_REST = (
        "needs {needs:g} GPUs; queue default has no quota of its own, and quotas leave {most:g} of "
        "{cluster:g} GPUs to it: name another queue, or give it quota"
    )
    REST_EXHAUSTED = (
        "needs {needs:g} GPUs; queue default has no quota of its own, and of the {quota:g} of {cluster:g} "
        "GPUs that quotas leave to it {quota_left:g} are left"
    )
    NO_MATCHING_FLAVOR = "its queue has no quota for what it wants"
    BEHIND_ANOTHER = "stands behind another job of its queue that cannot start yet"
    KEPT_FOR_ANOTHER = "needs {needs:g} GPUs; the {quota_left:g} that are left are kept for a job that waits longer"
    QUOTA_REACHED = "has {gpus:.0f} GPUs, which is all that its queue's quota leaves to it"
    FRAGMENTED = "needs {needs:.0f} GPUs, {free:.0f} are free but not in a usable arrangement"
    TOPOLOGY_UNMET = "needs {needs:.0f} GPUs close together, the best place has {best:.0f}"
    NO_MATCHING_NODE = "no node has the labels it wants or the taints it tolerates"
    SHORT_OF_CPU_OR_MEMORY = "GPUs are free, but the CPU or memory beside them is not"
    WAITING_FOR_CPU = (
        "needs {needs:.0f} replicas with {cpus:g} CPUs each, the jobs that go first leave room for {free:.0f}"
    )
    WAITING_FOR_MEMORY = (
        "needs {needs:.0f} replicas with {memory_gib:g} GiB of memory each, "
        "the jobs that go first leave room for {free:.0f}"
    )
    EXCEEDS_CPU_OR_MEMORY = (
        "needs {needs:.0f} replicas with {cpus:g} CPUs and {memory_gib:g} GiB of memory each, "
        "the nodes that it may use have room for {capacity:.0f} when no job is on them"
    )
    SHARES_WITH_OTHERS = "has {gpus:.0f} of the {asked:.0f} GPUs it asked for; the others are held by other jobs"
    AT_ASKED_SIZE = "has {gpus:.0f} GPUs, {asked:.0f} asked for; it could use {max:.0f}, {free:.0f} are spare"
    CHANGE_DOES_NOT_PAY = (
        "stays at {gpus:.0f} GPUs: a change to {wanted:.0f} gains {gain_s:.0f} s and costs {cost_s:.0f} s"
    )
    SETTLING = (
        "stays at {gpus:.0f} GPUs for now: it was changed {ago_s:.0f} s ago, and a job is changed once for "
        "each arrival or end, at most {most:.0f} times an hour ({changes_left:.0f} left)"
    )
    KEEPS_SIZE = (
        "keeps its {gpus:.0f} GPUs: no checkpoint of it was seen, so a resize would lose its work; it is "
        "restarted with fewer only so that another job can start"
    )
    IN_TRANSITION = "has {gpus:.0f} GPUs and is just starting or resizing"
    WAITING_FOR_RELEASE = (
        "starts on {gpus:.0f} GPUs that another job leaves first, after it has saved its work: within a "
        "minute unless its `grace` is longer"
    )
    PARKED = "is parked until it is started again"
    IDLE = "holds {gpus:.0f} GPUs and has not used them for {idle_s:.0f} s"
    KEPT_SMALL = "is kept at {gpus:.0f} GPUs until it has used them for a while: it left its GPUs idle"
    PARKED_IDLE = (
        "is parked until it is started again: it held {before:.0f} GPUs and did not use them for {idle_s:.0f} s"
    )
    IN_TRIAL = "is tried out before it is queued: {measured:.0f} of {sizes:.0f} sizes are done"
    OUT_OF_MEMORY = (
        "ran out of GPU memory in trial runs with up to {most:.0f} GPUs, so it is not started; "
        "give it a size that fits, or start it all the same"
    )
    CANCELLING = "is cancelled and about to end"
    EVICTED = "has to leave its GPUs, and may have others"
    RESTART_BACKOFF = "failed and is tried again in {wait_s:.0f} s"
    RESIZE_BACKOFF = "could not be resized; that is tried again in {wait_s:.0f} s"
    # Why a job is over that did not end by itself.
    TIME_LIMIT = "reached its limit of {limit_s:g} s of running time"
    PROCESS_LIMIT = "was stopped: it had more than {limit:.0f} processes and threads (label batuta.dev/pids-limit)"
    MEMORY_LIMIT = "ran out of memory: its limit was {limit_gib:.3g} GiB (resources.memory)"
    # What holds a job up that has all it asked for.
    STRAGGLER = (
        "is held up by a straggler: rank {rank:.0f} of {ranks:.0f} needs {slowdown:.1f} times as long as "
        "most for its part of a step, {own_s:.3g} s instead of {usual_s:.3g} s, for {steps:.0f} steps"
    )
    UNEVEN_RANKS = (
        "is held up: rank {rank:.0f} of {ranks:.0f} needs {slowdown:.1f} times as long as others for its "
        "part of a step, {own_s:.3g} s instead of {usual_s:.3g} s, but too few agree on what is usual"
    )
    HANG = "hangs: it has reported nothing for {silent_s:.0f} s, and used to every {usual_s:.3g} s"
    # Why a command is given.
    ADMITTED = "starts with {gpus:.0f} GPUs"
    GREW = "grows from {before:.0f} to {gpus:.0f} GPUs"
    SHRANK = "gives GPUs to other jobs: {before:.0f} to {gpus:.0f}"
    SHRANK_UNSAVED = (
        "starts again with {gpus:.0f} instead of {before:.0f} GPUs, so that another job can start; no "
        "checkpoint of it was seen, so {lost_s:.0f} s of its work are lost"
    )
    CUT_TO_MAX = "shrinks from {before:.0f} to {gpus:.0f} GPUs: it may have {max:.0f} at most"
    SHRUNK_IDLE = "shrinks from {before:.0f} to {gpus:.0f} GPUs: it has not used them for {idle_s:.0f} s"
    PREEMPTED = "gives its {before:.0f} GPUs to jobs that go first"
    PUSHED_ASIDE = "gives its {before:.0f} GPUs to a job of its queue that goes first"
    RECLAIMED = "gives {before:.0f} GPUs back to the queue that lent them"
    SHARED_OUT = "gives its {before:.0f} GPUs to a queue that has less than its share"
    QUOTA_CUT = "gives its {before:.0f} GPUs up: its queue may use less than before"
    QUEUE_DRAINED = "gives its {before:.0f} GPUs up: its queue is drained"
    CHANGED_TYPE = "goes from {before:.0f} GPUs of one type to {gpus:.0f} of another"
    CONSOLIDATED = "moves closer together: gains {gain_s:.0f} s, costs {cost_s:.0f} s"
    MADE_ROOM = "moves so that a larger job fits: gains {gain_s:.0f} s, costs {cost_s:.0f} s"
    REPAIRED = "lost {lost:.0f} GPUs and gets others"
    LOST_NODE = "lost {lost:.0f} GPUs and there are no others for it now"

    def sentence(self, evidence: Evidence) -> str:
        numbers, text = dict(evidence), str(self.value)
        if REPLICAS in numbers:
            numbers.setdefault("gpus", numbers[REPLICAS])
            text = text.replace("its GPUs", "its nodes").replace("GPUs", REPLICAS)
        text = text.format(**numbers)
        return _ONE.sub(r"1 \1", text)
