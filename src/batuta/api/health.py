"""Whether the server lives, and whether it is of any use."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from batuta.api.cluster_models import Health
from batuta.api.desk import AtDesk
from batuta.api.plain_json import answer
from batuta.api.problems import MEDIA_TYPE, Refusal
from batuta.api.routes import PROBLEM_SCHEMA

router = APIRouter(tags=["health"])
_NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {"description": "not ready, and why", "content": {MEDIA_TYPE: {"schema": PROBLEM_SCHEMA}}}
}


@router.get("/healthz", response_model=Health)
async def get_health() -> Response:
    """The process answers."""
    return answer({"status": "alive"})


@router.get("/readyz", response_model=Health, responses=_NOT_READY)
async def get_readiness(desk: AtDesk) -> Response:
    """The engine runs and can store what happens."""
    service = desk.service
    if service.trouble or not service.running:
        raise Refusal(503, service.trouble or "the engine does not run")
    return answer({"status": "ready"})
