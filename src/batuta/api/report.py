"""Where the GPU time went."""

from __future__ import annotations

from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Response

from batuta.api.auth import Viewer
from batuta.api.desk import AtDesk
from batuta.api.plain_json import answer
from batuta.api.problems import Refusal
from batuta.api.report_models import Report
from batuta.api.routes import TimeS, problems

router = APIRouter(prefix="/report", tags=["cluster"])


@router.get("", response_model=Report, responses=problems(501))
async def get_report(
    desk: AtDesk,
    who: Viewer,
    from_s: TimeS | None = None,
    to_s: TimeS | None = None,
) -> Response:
    """GPU time used, lost, idle and waited for, by queue and by day; without times, of the last week."""
    account = desk.parts.account
    if account is None:
        raise Refusal(501, "this server keeps no account of GPU time")

    def work() -> dict[str, Any]:
        return account(from_s, to_s)

    return answer(await anyio.to_thread.run_sync(work, limiter=desk.questions))
