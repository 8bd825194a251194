"""What would have to be otherwise for a job to start now."""

from batuta.engine.suggest.changes import suggest
from batuta.engine.suggest.suggestion import Remedy, Suggestion

__all__ = ["Remedy", "Suggestion", "suggest"]
