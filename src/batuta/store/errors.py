"""Errors of the store; each message says what to do about it."""

from __future__ import annotations

from batuta.engine.ports import JournalUnavailable


class StoreError(Exception):
    """Stored state cannot be read or written."""


class StoreFullError(StoreError, JournalUnavailable):
    """The disk is full. Nothing was half written; a retry works when there is space."""


class StoreBusyError(StoreError, JournalUnavailable):
    """Another process has locked the database for too long."""


class StoreUnavailableError(StoreError, JournalUnavailable):
    """The database server does not answer, or no descriptor is left for the file. What waits for a commit is kept."""


class WriterReplacedError(StoreError):
    """Another server has become the writer of this journal. This one must stop: its World is stale."""


class JournalRewoundError(StoreError):
    """The database has lost transactions that it acknowledged, or has some that this writer did not send."""


class StoreCorruptError(StoreError):
    """The file is damaged, or is not a journal of Batuta's."""


class SchemaError(StoreError):
    """The database has a schema that this version cannot use."""


class CodecError(StoreError):
    """Stored text or bytes are damaged, or come from a version with another format."""


class DamagedRowError(CodecError):
    """A stored row is not what was written: its checksum is wrong, or missing."""


class UnknownEventError(CodecError):
    """An event of a type that this version does not know."""


class RecoveryError(StoreError):
    """The World cannot be rebuilt from the journal."""


class StateDirError(StoreError):
    """The state directory cannot be used as it is."""


class OtherStateError(StateDirError):
    """Journal and state directory do not belong together: one of them was lost, cut or exchanged."""


class AlreadyRunningError(StoreError):
    """Another server uses the state directory or the database."""

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid
