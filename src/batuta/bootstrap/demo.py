"""The demo: real elastic jobs on virtual GPUs, their progress, and what elasticity gained."""

from __future__ import annotations

import queue
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from batuta.backends.sim.experiment import Experiment, run_experiment
from batuta.bootstrap.local_server import Server, UpOptions, serve
from batuta.client.client import Client
from batuta.demo.scenario import DEMO, demo_workload
from batuta.store.state_dir import default_home

if TYPE_CHECKING:
    from batuta.apitypes.resources import Event

NODES, GPUS = 2, 4
_GIVE_UP_S = 900.0
_INTERRUPTED = 130


def run_demo(options: UpOptions, stay: bool) -> int:
    """Serves, lets the jobs of the demo arrive, and sums up. With `stay` the server goes on until Ctrl-C."""
    console = Console(highlight=False)
    outcome: list[bool] = []

    def begin(server: Server) -> None:
        server.keep_jobs = False  # they must not train on after Ctrl-C
        threading.Thread(target=_perform, args=(server, console, stay, outcome), daemon=True).start()

    code = serve(options, begin)
    if not code and not outcome:
        console.print("\ninterrupted; this would go on with its jobs:")
        console.print(f"  {_command('up --virtual', options.home)}", soft_wrap=True)
        return _INTERRUPTED
    return code or (0 if outcome == [True] else 1)


def _perform(server: Server, console: Console, stay: bool, outcome: list[bool]) -> None:
    try:
        with Client(server.url, server.token) as client:
            console.print(f"dashboard: {client.session_link()}", soft_wrap=True)
            console.print("           good for one login within a minute; this prints another:")
            console.print(f"           {_command('dashboard', server.state.path)}\n", soft_wrap=True)
            telling = _ProgressPrinter(client, console)
            telling.run()
            outcome.append(_sum_up(client, telling.mine, console, server.parts.policy))
    except Exception as error:
        console.print(f"the demo broke off: {error!r}")
        outcome.append(False)
    if stay and outcome:
        console.print("\nThe server goes on; Ctrl-C ends it. In another terminal, try")
        for verb in ("queue", "top", "report"):
            console.print(f"  {_command(verb, server.state.path)}", soft_wrap=True)
        return
    if server.ask_to_end is not None:
        server.ask_to_end()


def _command(verb: str, home: Path | None) -> str:
    """What to type, here, to reach this server: the program may be off the PATH, as after `make demo`."""
    program = Path(sys.argv[0])
    name = "batuta" if shutil.which("batuta") == str(program.absolute()) else _short(program)
    at_home = "" if home is None or home == default_home() else f" --home {_short(home)}"
    return f"{name} {verb}{at_home}"


def _short(path: Path) -> str:
    """A path as one would type it from here."""
    path, here = path.absolute(), Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


class _ProgressPrinter:
    """Submits the jobs when their time comes, and says what happens in a line each."""

    def __init__(self, client: Client, console: Console) -> None:
        self._client = client
        self._console = console
        self._begun_s = time.time()
        self._names: dict[str, str] = {}
        self._letters: dict[str, str] = {}
        self.mine: set[str] = set()
        """The jobs of this demo: the state directory may hold those of an earlier one, and other jobs."""
        self._over: set[str] = set()
        self._inbox: queue.SimpleQueue[Event | Exception] = queue.SimpleQueue()
        """What happens, and what goes wrong: one may wait for ever for events of jobs that were refused."""

    def run(self) -> None:
        before = self._client.cluster().seq
        for work in (self._submit_all, partial(self._listen, before)):
            threading.Thread(target=self._handing_over, args=(work,), daemon=True).start()
        while len(self._over & self.mine) < len(DEMO):
            left_s = self._begun_s + _GIVE_UP_S - time.time()
            try:
                news = self._inbox.get(timeout=max(0.0, left_s))
            except queue.Empty:
                raise TimeoutError(f"not over after {_GIVE_UP_S:.0f} s") from None
            if isinstance(news, Exception):
                raise news
            self._tell(news)

    def _handing_over(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._inbox.put(error)

    def _listen(self, after: int) -> None:
        for event in self._client.events(after=after):
            self._inbox.put(event)

    def _submit_all(self) -> None:
        for arrival in DEMO:
            time.sleep(max(0.0, self._begun_s + arrival.at_s - time.time()))
            self.mine.add(self._client.submit(arrival.task_yaml_text).id)

    def _tell(self, event: Event) -> None:
        data = event.data
        match event.type:
            case "JobSubmitted":
                job = data["job"]
                self._names[job["id"]] = job["name"]
                taken = set(self._letters.values())
                self._letters[job["id"]] = next((c for c in job["name"].upper() if c not in taken), "?")
                least, most = job["min"], job["max"]
                sizes = f"{most}" if least == most else f"{least} to {most}"
                self._say(job["id"], f"arrives: {sizes} GPUs", "cyan")
            case "Planned":
                for command in data["commands"]:
                    self._say(command["job"], command["sentence"], "")
                if data["commands"]:
                    self._console.print(f"        {self._map()}", style="dim")
            case "JobEnded":
                good = data["state"] == "SUCCEEDED"
                self._say(data["job"], data["state"].lower(), "green" if good else "red")
                self._over.add(data["job"])
            case _:
                pass

    def _say(self, job: str, sentence: str, style: str) -> None:
        minutes, seconds = divmod(int(time.time() - self._begun_s), 60)
        self._console.print(f" {minutes:2d}:{seconds:02d}  {self._names.get(job, job):<10} {sentence}", style=style)

    def _map(self) -> str:
        """All GPUs, each with a letter of the job that has it: the first one that no other job has."""
        return "   ".join(
            f"{node.name} [{' '.join(self._letter(gpu.jobs) for gpu in node.gpus)}]" for node in self._client.nodes()
        )

    def _letter(self, jobs: Sequence[object]) -> str:
        if not jobs:
            return "·"
        return self._letters.get(str(getattr(jobs[0], "id", "")), "?")


_Span = tuple[float, float]  # from the submission of a job to its end, in seconds


def _sum_up(client: Client, mine: Collection[str], console: Console, policy: str) -> bool:
    """Prints what was measured beside what the simulator says of the same jobs; whether all succeeded."""
    ended = [job for job in client.jobs() if job.id in mine and job.ended_s is not None]
    runs = [
        ("fifo, rigid", _simulated("fifo", rigid=True), "simulated"),
        (policy, _simulated(policy, rigid=False), "simulated"),
        (policy, [(job.submitted_s or 0.0, job.ended_s or 0.0) for job in ended], "measured"),
    ]
    table = Table(title="\nWhat elasticity gained", title_justify="left", box=None, pad_edge=False)
    for name in ("", "mean completion", "makespan", "against fifo", ""):
        table.add_column(name, justify="left" if not name else "right")
    fifo_s = _mean_s(runs[0][1])
    for what, spans, how in runs:
        mean_s, makespan_s = _mean_s(spans), max(end for _, end in spans) - min(begin for begin, _ in spans)
        table.add_row(what, f"{mean_s:.0f} s", f"{makespan_s:.0f} s", f"{mean_s / fifo_s:.2f} ×", how)
    console.print(table)
    return len(ended) == len(DEMO) and all(job.succeeded for job in ended)


def _mean_s(spans: Sequence[_Span]) -> float:
    return fmean(end - begin for begin, end in spans)


def _simulated(policy: str, *, rigid: bool) -> list[_Span]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "demo.jsonl"
        file.write_text(demo_workload(rigid=rigid), encoding="utf-8")
        result = run_experiment(Experiment(policy, str(file), f"{NODES}x{GPUS}"))
    return [(job.submit_s, job.submit_s + job.jct_s) for job in result.jobs]
