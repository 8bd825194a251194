"""Phases ↔ JSON. Whoever writes an outlook imports this before it asks for the form of one."""

from __future__ import annotations

from typing import Any

import numpy as np

from batuta.core.outlook import Outlook, Phases
from batuta.store.values import Form, form_of, set_form


def _write(phases: Phases) -> list[Any]:
    return [phases.marks.tolist(), phases.per_s.tolist()]


def _read(value: Any) -> Phases:
    marks, per_s = value
    return Phases(np.array(marks, np.float64), np.array(per_s, np.float64))


set_form(Phases, Form(_write, _read))
OUTLOOKS = form_of(dict[str, Outlook])
