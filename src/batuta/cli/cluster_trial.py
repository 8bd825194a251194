"""`batuta trial` at a cluster: writes a TrialRun, and follows it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import typer

from batuta.cli.options import Output

if TYPE_CHECKING:
    from batuta.client.kube.client import KubeClient

LOOK_EVERY_S = 1.0
_EXIT_CODES = {"SUCCEEDED": 0, "CANCELLED": 103}


def follow_on_cluster(client: KubeClient, submission: Any, output: Output, *, detach: bool) -> int:
    """Writes the trial and shows what its runs show; returns the exit code. Ctrl-C detaches."""
    from batuta.cli.terminal import print_json, say, spinner
    from batuta.cli.trial import print_trial, tell_runs

    name, notes = client.try_out(submission)
    for note in notes:
        say(f"note: {note}")
    later = f"kubectl get trialrun -n {client.namespace} {name} -o yaml shows what is measured so far"
    if detach:
        if output is Output.JSON:
            print_json({"trial": f"{client.namespace}/{name}"})
        else:
            typer.echo(f"trial {name} is made")
            say(later)
        return 0
    told: set[int] = set()
    try:
        with spinner(f"{name} is tried out") as status:
            state, found = client.trial(name)
            while not found.over:
                tell_runs(found, told, status.update)
                time.sleep(LOOK_EVERY_S)
                state, found = client.trial(name)
            tell_runs(found, told, status.update)
    except KeyboardInterrupt:
        say(f"\ndetached; {later}")
        return 0
    if output is Output.JSON:
        print_json(found)
    else:
        print_trial(found)
    return _EXIT_CODES.get(state, 100)
