"""All processes of a replica: whatever it forks, however detached, descends from its runner."""

from __future__ import annotations

import os

from batuta.backends.local.supervisor import tree
from batuta.backends.local.supervisor.light import PR_SET_CHILD_SUBREAPER, prctl, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from batuta.backends.local.supervisor.tree import Entry, Process


class Family:
    """The descendants of this process, and the signals for them.

    On Linux an orphan among them becomes our child. Elsewhere nobody knows where it went; there, what can be
    reached is the group of the main process.
    """

    def __init__(self) -> None:
        self.main = 0
        self.adopts_orphans = prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._told: set[Process] = set()

    def living(self) -> list[Entry]:
        """Parents before their children."""
        return [entry for entry in tree.descendants({os.getpid()}) if not entry.dead]

    def ask_for_checkpoint(self) -> None:
        """Sends SIGUSR1 to whoever has a handler for it. All others would die of it."""
        for entry in self.living():
            if tree.catches(entry.pid, signal.SIGUSR1):
                tree.send(entry.process, signal.SIGUSR1)

    def ask_to_end(self) -> None:
        for entry in self.living():
            self._ask_to_end(entry)
        if self.main and not self.adopts_orphans:
            _signal_group(self.main, signal.SIGTERM)

    def ask_orphans_to_end(self) -> None:
        """Asks those who were being forked when all were asked, and whose parents have ended since.

        What a process starts in order to end well (to upload its checkpoint, say) has a parent: it is spared.
        """
        own = os.getpid()
        for entry in self.living():
            if entry.parent == own and entry.process not in self._told:
                self._ask_to_end(entry)

    def kill(self, *, groups: bool) -> list[int]:
        """Kills all, and whole groups if they fork faster than we look; the pids that were there."""
        left = self.living()
        for entry in left:
            tree.send(entry.process, signal.SIGKILL)
            if groups:
                _signal_group(entry.group, signal.SIGKILL)
        if self.main and not self.adopts_orphans:
            _signal_group(self.main, signal.SIGKILL)
        return [entry.pid for entry in left]

    def _ask_to_end(self, entry: Entry) -> None:
        self._told.add(entry.process)
        if tree.send(entry.process, signal.SIGTERM):
            tree.send(entry.process, signal.SIGCONT)  # one that is suspended could not hear it


def _signal_group(group: int, number: int) -> None:
    """Signals a group of the replica. It has sessions of its own, whose groups nobody joins from outside."""
    if group > 1 and group != os.getpgrp():
        try:
            os.killpg(group, number)
        except OSError:
            return
