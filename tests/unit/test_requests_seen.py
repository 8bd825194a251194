"""What tests read of the API server's audit log while it is being written."""

import json
from pathlib import Path

from tests.support.kube.requests_seen import RequestsSeen


def line(number: int) -> bytes:
    user, at = {"username": "ana"}, "2026-11-18T20:00:00.000000Z"
    entry = {"auditID": str(number), "user": user, "verb": "get", "requestReceivedTimestamp": at, "requestURI": "/"}
    return json.dumps(entry).encode() + b"\n"


def test_a_mark_in_the_middle_of_a_line_counts_that_line_as_a_later_one(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_bytes(line(1) + line(2)[:30])
    requests = RequestsSeen(log)
    mark = requests.mark()
    with log.open("ab") as file:
        file.write(line(2)[30:] + line(3)[:30])
    assert len(requests.since(mark)) == 1
    assert len(requests.since()) == 2


def test_a_mark_before_the_first_line_is_the_start(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    requests = RequestsSeen(log)
    assert requests.mark() == 0
    log.write_bytes(line(1)[:30])
    assert requests.mark() == 0
