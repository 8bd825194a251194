"""How lists of jobs are asked for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from batuta.api.job_pages import JobFilter
from batuta.api.routes import MOST_LIMIT
from batuta.core.job import JobState


class JobQuery(BaseModel):
    """Which jobs, how many, from where on."""

    state: list[JobState] = []
    active: bool | None = None
    user: Annotated[str, Field(max_length=128)] = ""
    queue: Annotated[str, Field(max_length=256)] = ""
    name: Annotated[str, Field(max_length=256, description="`*` and `?` stand for anything")] = ""
    since_s: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] | None = None
    order: Literal["newest", "oldest"] = "oldest"
    limit: Annotated[int, Field(ge=1, le=MOST_LIMIT)] = 100
    cursor: Annotated[str, Field(max_length=512, description="`next` of the last answer")] = ""

    def filter(self) -> JobFilter:
        return JobFilter(tuple(self.state), self.active, self.user, self.queue, self.name, self.since_s)
