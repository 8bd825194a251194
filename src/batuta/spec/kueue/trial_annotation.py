"""Whether the jobs of a queue are tried out before they wait. Kueue has no field for it: an annotation."""

from __future__ import annotations

from batuta.spec.kueue.part import Part, read_text_value

TRIAL = "batuta.dev/trial"
_MOST = 1000
_WORDS = {"true": True, "false": False}


def read_trial_wish(metadata: Part) -> bool | None:
    """What a queue's metadata says; None where it says nothing, or nothing that can be understood."""
    for name, item in metadata.entries("annotations", _MOST):
        if name == TRIAL:
            word = read_text_value(metadata.reader, item)
            if word not in _WORDS:
                metadata.reader.fault(item.node, f"{TRIAL} cannot be {word[:60]!r}", '"true" or "false"')
            return _WORDS.get(word)
    return None


def trial_annotation(wish: bool | None) -> dict[str, str]:
    """The annotation that says so."""
    return {} if wish is None else {TRIAL: "true" if wish else "false"}
