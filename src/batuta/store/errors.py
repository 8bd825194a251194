"""What can go wrong with what is stored; each message says what to do about it."""

from __future__ import annotations

from batuta.engine.ports import JournalUnavailable


class StoreError(Exception):
    """Something about stored state is not as it has to be."""


class StoreFullError(StoreError, JournalUnavailable):
    """There is no room left. Nothing was half written; the same can be tried again when there is."""


class StoreBusyError(StoreError, JournalUnavailable):
    """Another process has kept the database for too long."""


class StoreUnavailableError(StoreError, JournalUnavailable):
    """The database server is away. What waits for a commit is kept; the same can be tried again."""


class WriterReplacedError(StoreError):
    """Another server has become the writer of this journal. This one must not go on: its World is old."""


class JournalRewoundError(StoreError):
    """The database has forgotten what it had acknowledged, or has more than this writer gave it."""


class StoreCorruptError(StoreError):
    """The file is damaged, or is no journal of Batuta's."""


class SchemaError(StoreError):
    """The database has a schema that this version cannot use."""


class CodecError(StoreError):
    """Stored text or bytes are not what was written, or come from a version that writes them otherwise."""


class UnknownEventError(CodecError):
    """An event of a type that this version does not know."""


class RecoveryError(StoreError):
    """The World cannot be rebuilt from what is there."""


class StateDirError(StoreError):
    """The state directory cannot be used as it is."""


class AlreadyRunningError(StoreError):
    """Another server has the state directory."""

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid
