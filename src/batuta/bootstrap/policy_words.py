"""What the built-in policies do, in a sentence each for people who choose one."""

from __future__ import annotations

from batuta.core.policy import Policy

_PLAIN = {
    "fifo": "First come, first served; every job gets the fewest GPUs that it can run on.",
    "srjf": "Jobs with the least work left go first; every job gets the fewest GPUs that it can run on.",
    "tiresias": "Jobs that have used little GPU time so far go first, at the size that they asked for.",
    "elastic-fifo": "First come, first served; GPUs that nobody waits for make the running jobs larger.",
    "elastic-srjf": (
        "Jobs with the least work left go first; GPUs that nobody waits for make the running jobs larger."
    ),
    "elastic-tiresias": (
        "Jobs that have used little GPU time so far go first; the others shrink while many wait, and free "
        "GPUs go to whoever gets fastest by them."
    ),
    "ffdl": "First come, first served; sizes are chosen so that all running jobs together are fastest.",
    "afs-l": "GPUs go one by one to the job that gains most by one more; short jobs are preferred.",
    "optimus": "First come, first served; GPUs then go one by one to the job whose end they bring nearest.",
    "themis": "Jobs that are slowed down most against a fair share of the cluster go first.",
    "gavel": (
        "Everybody gets a fair part of every GPU type's time, weighted by what the type is worth to the job."
    ),
    "pollux": "Sizes that keep all jobs near, or above, what a fair share would give them; few restarts.",
    "sia": "The GPU type and size of which each job makes good use, for all together; few restarts.",
    "tiresias-replay": "Tiresias as its authors ran it, to repeat published experiments.",
    "optimus-replay": "Optimus as its authors ran it, to repeat published experiments.",
}


def words_on(policy: Policy) -> str:
    """One sentence; of a policy that is not ours, the first line of what it says of itself."""
    import inspect
    import sys

    own = type(policy)
    if own.__module__.startswith("batuta.policies.") and policy.name in _PLAIN:
        return _PLAIN[policy.name]
    text = inspect.getdoc(own) or inspect.getdoc(sys.modules[own.__module__]) or ""
    return text.split("\n")[0]
