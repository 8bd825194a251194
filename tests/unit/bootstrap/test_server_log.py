"""The server's log is for its owner's eyes, one JSON object per line."""

import json
import stat
from pathlib import Path

from batuta.bootstrap.server_log import open_log


def test_log_can_be_read_by_its_owner_only(tmp_path: Path):
    path = tmp_path / "server.log"
    open_log(path).warning("disk", why="ünter 64 MiB")
    open_log(tmp_path / "another.log")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    said = json.loads(path.read_text(encoding="utf-8"))
    assert (said["event"], said["why"], said["level"]) == ("disk", "ünter 64 MiB", "warning")
