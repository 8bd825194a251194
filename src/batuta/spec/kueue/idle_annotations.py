"""What a queue wants done about idle jobs. Kueue has no field for it, so it is said in two annotations."""

from __future__ import annotations

from batuta.core.idle_wish import IdleAction, IdleWish
from batuta.spec.duration import parse_duration_s
from batuta.spec.kueue.part import Part, read_text_value
from batuta.spec.problem import InputError

ACTION = "batuta.dev/idle-action"
AFTER = "batuta.dev/idle-after"
_MOST = 1000


def read_idle(metadata: Part) -> IdleWish:
    """The wish of a queue's metadata; what is no action and no duration is at fault."""
    action, after_s = None, None
    for name, item in metadata.entries("annotations", _MOST):
        if name == ACTION:
            word = read_text_value(metadata.reader, item)
            action = next((one for one in IdleAction if one.value == word), None)
            if action is None:
                words = ", ".join(one.value for one in IdleAction)
                metadata.reader.fault(item.node, f"{ACTION} cannot be {word[:60]!r}", f"one of {words}")
        elif name == AFTER:
            after_s = _seconds(metadata, read_text_value(metadata.reader, item))
    return IdleWish(action, after_s)


def _seconds(metadata: Part, text: str) -> float | None:
    try:
        found = parse_duration_s(text, AFTER)
    except InputError as error:
        metadata.fault("annotations", error.problems[0].message, "as in 15m")
        return None
    if not found > 0:
        metadata.fault("annotations", f"{AFTER} must be more than 0", "as in 15m")
        return None
    return found


def idle_annotations(wish: IdleWish) -> dict[str, str]:
    """The annotations that say so."""
    said = {ACTION: wish.action.value} if wish.action is not None else {}
    return said | ({AFTER: f"{wish.after_s:g}s"} if wish.after_s is not None else {})
