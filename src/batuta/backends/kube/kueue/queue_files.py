"""Quota from a ConfigMap whose keys are files: for clusters without Kueue's definitions."""

from __future__ import annotations

import logging
from typing import Any

from batuta.backends.kube.kueue.kinds import QUEUE_FILES, QueueFiles
from batuta.backends.kube.kueue.notices import Fault
from batuta.backends.kube.kueue.quota_objects import Found
from batuta.core.quota import Quota
from batuta.spec.kueue.change import merge
from batuta.spec.kueue.files import read_quota_texts
from batuta.spec.problem import InputError

_log = logging.getLogger(__name__)


def read_queue_files(config_map: QueueFiles | None, base: Quota, last: Quota) -> Found:
    """What the files say on top of `base`. All or nothing: with a fault in them the last good value stays."""
    if config_map is None:
        return Found(base)
    try:
        change = read_quota_texts(sorted(config_map.data.items()))
        quota = merge(base, change)
    except InputError as error:
        sentence = "; ".join(str(problem) for problem in error.problems)
        meta = config_map.metadata
        return Found(last, {meta.uid: Fault(QUEUE_FILES, meta, f"the quota stays as it was: {sentence}")})
    if quota != last:
        for note in change.notes:
            _log.info("%s", note)
    return Found(quota)


def quota_from_config(queues: list[dict[str, Any]]) -> Quota:
    """Queues as the operator's configuration has them, in the short form."""
    import yaml

    if not queues:
        return Quota()
    return merge(Quota(), read_quota_texts([("config.queues", yaml.safe_dump({"queues": queues}))]))
