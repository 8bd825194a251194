"""Short jobs that keep their own record of what happened to them, to be compared with what a server says.

Every replica appends lines to `SEEN/<name>`: time, run, rank, word and more. It holds a lock of its job and
rank and one of each of its GPUs as long as any process of it lives: whoever cannot get one writes that down.
Every line that it prints is noted after it was printed, so what is noted has to be in the log.
"""

import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PRELUDE = r"""
exec {nap}<> <(:)
nap() { read -rt "$1" -u "$nap" _ || :; }
note() { echo "$EPOCHREALTIME $BATUTA_RESTART $BATUTA_REPLICA $*" >>"$SEEN/$NAME"; }
say() { echo "L $BATUTA_RESTART $1" && note line "$1"; }
count() { for ((i = 1; i <= $1; i++)); do say "$i"; nap "$2"; done; }
keep() { until { echo "$2" >"$1.new" && mv "$1.new" "$1"; } 2>/dev/null; do nap 0.05; done; }  # the disk may be full
finish() { note end "$1"; exit "$1"; }
ip=$(sed -n "$((BATUTA_REPLICA + 1))p" <<<"$SKYPILOT_NODE_IPS")
exec {own}>"$SEEN/$NAME.rank-$BATUTA_REPLICA"
flock -n "$own" || note twice
for gpu in ${CUDA_VISIBLE_DEVICES//,/ }; do
  exec {card}>"$SEEN/gpu-$ip-$gpu"
  flock -n "$card" || note overbooked "$ip" "$gpu"
done
note begin "$ip" "$CUDA_VISIBLE_DEVICES"
"""
_LINES = "count {lines} {pause}\nfinish 0"
_FLAKY = """
failures=$(cat "$BATUTA_CHECKPOINT_DIR/failures" 2>/dev/null || echo 0)
count {lines} {pause}
if [ "$failures" -lt {fails} ]; then keep "$BATUTA_CHECKPOINT_DIR/failures" $((failures + 1)); finish 7; fi
finish 0
"""
_STUBBORN = "trap '' TERM\ncount 100000 0.1"
_DAEMON = """
(setsid bash -c 'trap "" TERM HUP; exec -a batuta-test-daemon sleep 600' </dev/null >/dev/null 2>&1 &)
count {lines} {pause}
finish 0
"""
_ELASTIC = """
at=$BATUTA_CHECKPOINT_DIR/at
if [ "$BATUTA_REPLICA" = 0 ]; then
  n=$(cat "$at" 2>/dev/null || echo 0)
  for ((i = 1; n < {lines}; i++)); do
    nap {pause}
    n=$((n + 1))
    keep "$at" $n
    say $i
  done
  keep "$at.done" yes
else
  for ((i = 1; ; i++)); do
    [ -e "$at.done" ] && break
    say $i
    nap {pause}
  done
fi
finish 0
"""
_TRAINER = 'exec {python} -m batuta.demo.trainer --steps {lines} --work-ms 30 --comm-ms 1 --seed "$SEED"'
_SETUP = """
echo "$EPOCHREALTIME $BATUTA_RESTART $BATUTA_REPLICA setup-begun" >>"$SEEN/$NAME"
sleep 0.1
echo "$EPOCHREALTIME $BATUTA_RESTART $BATUTA_REPLICA setup-done" >>"$SEEN/$NAME"
"""
STUBBORN, HOPELESS, TRAINER, ELASTIC, BAD_SETUP = "stubborn", "hopeless", "trainer", "elastic", "bad-setup"


@dataclass(frozen=True)
class BusyJob:
    """A job, and what should become of it."""

    name: str
    kind: str
    run: str
    lines: int
    """That each rank of the run that succeeds prints."""
    gpus: int = 1
    nodes: int = 1
    setup: str = ""
    restarts: int = 0
    ends: str = "SUCCEEDED"
    elastic: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def task(self, seen: Path) -> dict[str, Any]:
        """As a task file has it."""
        resources: dict[str, Any] = {"accelerators": f"virtual:{self.gpus}"}
        if self.restarts:
            resources["job_recovery"] = {"max_restarts_on_errors": self.restarts}
        task = {
            "name": self.name,
            "num_nodes": self.nodes,
            "resources": resources,
            "envs": {"SEEN": str(seen), "NAME": self.name, "SEED": str(self.seed)},
            "setup": self.setup,
            "run": PRELUDE + self.run,
            "elastic": {"grace": "2s", **self.elastic},
        }
        return {key: value for key, value in task.items() if value != ""}

    @property
    def is_resizable(self) -> bool:
        return "max_nodes" in self.elastic

    @property
    def has_numbered_lines(self) -> bool:
        return self.kind != TRAINER


Maker = Callable[[str, random.Random], BusyJob]


def _lines(name: str, chance: random.Random) -> BusyJob:
    gpus, nodes = chance.choice(((1, 1), (1, 1), (2, 1), (4, 1), (1, 2), (1, 3), (2, 2)))
    lines, pause = chance.randrange(5, 40), chance.choice((0.0, 0.01, 0.03))
    return BusyJob(name, "lines", _LINES.format(lines=lines, pause=pause), lines, gpus, nodes)


def _quick(name: str, chance: random.Random) -> BusyJob:
    return BusyJob(name, "quick", _LINES.format(lines=1, pause=0), 1)


def _with_setup(name: str, chance: random.Random) -> BusyJob:
    return BusyJob(name, "setup", _LINES.format(lines=8, pause=0.02), 8, nodes=chance.choice((1, 2)), setup=_SETUP)


def _bad_setup(name: str, chance: random.Random) -> BusyJob:
    return BusyJob(name, BAD_SETUP, "note ran", 0, setup=_SETUP + "exit 3", ends="FAILED_SETUP")


def _flaky(name: str, chance: random.Random) -> BusyJob:
    return BusyJob(name, "flaky", _FLAKY.format(lines=5, pause=0.02, fails=1), 5, restarts=2)


def _hopeless(name: str, chance: random.Random) -> BusyJob:
    run = _FLAKY.format(lines=3, pause=0.02, fails=99)
    return BusyJob(name, HOPELESS, run, 3, restarts=1, ends="FAILED")


def _stubborn(name: str, chance: random.Random) -> BusyJob:
    return BusyJob(name, STUBBORN, _STUBBORN, 0, ends="CANCELLED", elastic={"grace": "300ms"})


def _daemon(name: str, chance: random.Random) -> BusyJob:
    return BusyJob(name, "daemon", _DAEMON.format(lines=6, pause=0.03), 6)


def _elastic(name: str, chance: random.Random) -> BusyJob:
    steps, sizes = chance.randrange(20, 60), {"min_nodes": 1, "max_nodes": chance.choice((2, 4))}
    run = _ELASTIC.format(lines=steps, pause=0.04)
    return BusyJob(name, ELASTIC, run, steps, elastic={**sizes, "checkpoint": "none"})


def _trainer(name: str, chance: random.Random) -> BusyJob:
    steps = chance.randrange(30, 60)
    run = _TRAINER.format(python=sys.executable, lines=steps)
    sizes = {"min_nodes": 1, "max_nodes": 3, "checkpoint": "on-signal"}
    return BusyJob(name, TRAINER, run, steps, elastic=sizes, seed=chance.randrange(9))


KINDS: tuple[tuple[Maker, int], ...] = (
    *((_quick, 20), (_lines, 30), (_with_setup, 8), (_bad_setup, 3), (_flaky, 8)),
    *((_hopeless, 4), (_stubborn, 6), (_daemon, 6), (_elastic, 11), (_trainer, 4)),
)


KINDS_FOR_FULL_DISKS = tuple((make, weight) for make, weight in KINDS if make is not _trainer)
"""A trainer that cannot save its checkpoint has failed, and says so."""


def draw_job(name: str, chance: random.Random, kinds: tuple[tuple[Maker, int], ...] = KINDS) -> BusyJob:
    (make,) = chance.choices([make for make, _ in kinds], [weight for _, weight in kinds])
    return make(name, chance)


# ------------------------------------------------------------------------------------- what they wrote down


@dataclass(frozen=True)
class Note:
    """One line of a replica's own record."""

    time_s: float
    run: int
    rank: int
    word: str
    rest: tuple[str, ...]


def read_notes(seen: Path, job: BusyJob) -> list[Note]:
    """A job's own record; empty when it never ran."""
    path = seen / job.name
    if not path.exists():
        return []
    notes = []
    for line in path.read_text().splitlines():
        time_s, run, rank, word, *rest = line.split()
        notes.append(Note(float(time_s), int(run), int(rank), word, tuple(rest)))
    return notes


_NUMBERED = re.compile(r"L (\d+) (\d+)")


def read_numbered(line: str) -> tuple[int, int] | None:
    """The run and number of a numbered line of a log; None for any other."""
    match = _NUMBERED.fullmatch(line)
    return None if match is None else (int(match[1]), int(match[2]))
