"""A small file that is replaced as a whole, also when the disk has become full."""

from __future__ import annotations

import os

_SIZE_BYTES = 4096


class StatusFile:
    """Publishes a text under a path: a reader sees the old text or the new one, never a part.

    The next version is written into a spare file that has its space already, and is renamed. That frees the
    space of the old version, of which the next spare is made. So the last news of a replica (its exit code)
    can be written on a disk that its own output has filled.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._spare_path = path + ".spare"
        self._spare = -1
        self._make_spare()

    def replace(self, text: str) -> bool:
        """Publishes a text; False when it could not be written."""
        if self._spare < 0 and not self._make_spare():
            return False
        data = text.encode()
        try:
            if os.pwrite(self._spare, data, 0) < len(data):
                return False
            os.ftruncate(self._spare, len(data))
            os.rename(self._spare_path, self._path)
        except OSError:
            self._drop_spare()  # it may be gone, with the whole directory
            return False
        os.close(self._spare)
        self._spare = -1
        self._make_spare()
        return True

    def close(self) -> None:
        """Gives the spare space back."""
        self._drop_spare()

    def _make_spare(self) -> bool:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            self._spare = os.open(self._spare_path, flags, 0o600)
            if os.write(self._spare, b" " * _SIZE_BYTES) == _SIZE_BYTES:
                return True
        except OSError:
            pass
        self._drop_spare()
        return False

    def _drop_spare(self) -> None:
        if self._spare < 0:
            return
        os.close(self._spare)
        self._spare = -1
        try:
            os.unlink(self._spare_path)
        except OSError:
            return  # gone already
