"""The server's log is for its owner's eyes, one JSON object per line."""

import json
import logging
import stat
from pathlib import Path

from batuta.telemetry.logs import open_log


def test_log_can_be_read_by_its_owner_only(tmp_path: Path):
    path = tmp_path / "server.log"
    open_log(path).warning("disk", why="ünter 64 MiB")
    open_log(tmp_path / "another.log")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    said = json.loads(path.read_text(encoding="utf-8"))
    assert (said["event"], said["why"], said["level"]) == ("disk", "ünter 64 MiB", "warning")


def test_what_a_request_broke_on_is_in_the_log(tmp_path: Path):
    """An answer with status 500 says so."""
    path = tmp_path / "server.log"
    open_log(tmp_path / "before.log")
    open_log(path)
    uvicorn = logging.getLogger("uvicorn.error")
    uvicorn.info("too much")
    try:
        raise ZeroDivisionError("no idea")
    except ZeroDivisionError:
        uvicorn.exception("Exception in ASGI application")
    open_log(tmp_path / "another.log")
    (line,) = path.read_text(encoding="utf-8").splitlines()
    said = json.loads(line)
    assert (said["event"], said["level"]) == ("Exception in ASGI application", "error")
    assert "ZeroDivisionError: no idea" in said["exception"]
    assert not (tmp_path / "before.log").exists()
