"""Where the GPU time went."""

from __future__ import annotations

from typing import Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Response

from batuta.api.auth import Viewer
from batuta.api.desk import AtDesk
from batuta.api.plain_json import answer
from batuta.api.problems import Refusal
from batuta.api.report_models import Report
from batuta.api.routes import TimeS, problems

router = APIRouter(prefix="/report", tags=["cluster"])


_PAGE = {"Content-Disposition": 'attachment; filename="batuta-waste.html"'}
"""Kept as a file: its styles stand within it, which pages of this server may not have."""


@router.get(
    "",
    response_model=Report,
    responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}, **problems(501)},
)
async def get_report(
    desk: AtDesk,
    who: Viewer,
    from_s: TimeS | None = None,
    to_s: TimeS | None = None,
    format: Literal["json", "html"] = "json",
) -> Response:
    """GPU time used, lost, idle and waited for, by queue and by day; without times, of the last week."""
    account, page = desk.parts.account, desk.parts.account_page
    if account is None:
        raise Refusal(501, "this server keeps no account of GPU time")
    if format == "html" and page is None:
        raise Refusal(501, "this server draws no pages: batuta report --html does")

    def work() -> dict[str, Any]:
        return account(from_s, to_s)

    found = await anyio.to_thread.run_sync(work, limiter=desk.questions)
    if format == "html" and page is not None:
        return Response(page(found), headers=_PAGE, media_type="text/html; charset=utf-8")
    return answer(found)
