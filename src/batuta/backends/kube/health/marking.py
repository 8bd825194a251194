"""Makes nodes look as the book says: asked for until it is seen, and not more often than needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.health import people
from batuta.backends.kube.health.marks import Marks, changes, has_condition, marks_of
from batuta.backends.kube.health.memory import Memory
from batuta.backends.kube.health.node_writes import mark_node, plain
from batuta.backends.kube.operator.writes import Doing
from batuta.core.cluster import NodeName

AGAIN_S: Final = 2.0
"""After this, what was written and is not seen is written again."""


class Marking:
    """Level-triggered. For the engine's thread."""

    def __init__(
        self, nodes: Mapping[str, objects.Node], ask: Callable[[str, Doing, float], bool], prefix: str
    ) -> None:
        """`prefix`: of the keys of its writes."""
        self._nodes = nodes
        self._ask = ask
        self._prefix = prefix
        self._doubtful: set[NodeName] = set()
        """Nodes that may look otherwise than they shall."""
        self._asked: dict[NodeName, tuple[Marks, float]] = {}
        """What was last to be written on such nodes, and when."""

    @property
    def is_done(self) -> bool:
        """Whether all nodes look as they shall, as far as anybody knows."""
        return not self._doubtful

    def doubt(self, nodes: Iterable[NodeName]) -> None:
        """These may have changed, or shall."""
        self._doubtful.update(nodes)

    def drive(self, memory: Memory, now_s: float) -> tuple[bool, float]:
        """Whether a node has come to look as it shall, so that others may go on; and when to look again."""
        has_settled, again_s = False, math.inf
        for name in list(self._doubtful):
            if self._is_settled(memory, name, now_s):
                self._doubtful.discard(name)
                has_settled |= self._asked.pop(name, None) is not None
            else:
                again_s = now_s + AGAIN_S
        return has_settled, again_s

    def _is_settled(self, memory: Memory, name: NodeName, now_s: float) -> bool:
        """Whether a node looks as it shall; else the write that makes it so is asked for."""
        node = self._nodes.get(name)
        if node is None:
            return True
        said = people.mended(node)
        drop = (names.MENDED,) if said is not None and not said.unclear else ()
        marks = marks_of(memory.book, name, memory.seen.get(name, 0))
        has_it = marks.condition is None or has_condition(node, marks.condition)
        if has_it and not changes(plain(node), marks, drop):
            return True
        before, asked_s = self._asked.get(name, (None, -math.inf))
        if before == marks and now_s < asked_s + AGAIN_S:
            return False  # it was written, and is not seen yet
        do = partial(mark_node, node=name, marks=marks, drop=drop)
        if self._ask(f"{self._prefix}mark/{name}", do, now_s):
            self._asked[name] = marks, now_s
        return False
