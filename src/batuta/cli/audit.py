"""`batuta audit`: which user did what."""

from __future__ import annotations

import time
from typing import Annotated

from batuta.apitypes.resources import Event
from batuta.cli.events import event_sentences
from batuta.cli.options import HomeOption, Output, OutputOption, connect_to_server, option, parse_time_s
from batuta.cli.output import Column, format_time, print_json, print_table


def audit(
    user: Annotated[str | None, option("Only what one user did.", names="--user -u")] = None,
    job: Annotated[str | None, option("Only what was done to one job.", names="--job -j", complete="jobs")] = None,
    since: Annotated[str | None, option("Nothing older, as in 2h (ago), 09:30 or '2026-11-16 08:30'.", "TIME")] = None,
    limit: Annotated[int, option("The last N.", "N", names="--limit -n", min=1, max=10_000)] = 100,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """List which user did what, the oldest first.

    For admins. Jobs that were submitted, changed, cancelled or parked; nodes, queues, policies; tokens, sessions
    of browsers, the end of the server. It goes back as far as the journal does: 30 days.

    Examples:
      batuta audit --since 2h
      batuta audit --user ana --job 17 -o json
    """
    since_s = None if since is None else parse_time_s(since, "--since", time.time())
    with connect_to_server(home) as client:
        only = None if job is None else client.job(job).id
        found = client.audit(user=user, job=only, since_s=since_s, limit=limit)
    if output is Output.JSON:
        print_json([_facts(event) for event in found])
        return
    rows = [
        (format_time(event.time_s), str(event.data.get("actor") or ""), "; ".join(event_sentences(event)))
        for event in found
    ]
    print_table((Column("TIME"), Column("USER"), Column("WHAT")), rows, "nothing that a user did is known")


def _facts(event: Event) -> dict[str, object]:
    named = {"seq": event.seq, "time_s": event.time_s, "user": event.data.get("actor"), "type": event.type}
    return named | {"what": "; ".join(event_sentences(event)), "event": event.data}
