"""The table of all verbs of `batuta`: what each does and which module has its code, loaded on use.

`batuta --help` reads this table and no other module, however many verbs there are. The sentences are those of
the verbs' own help; a test compares them.
"""

from __future__ import annotations

import re
from collections import UserDict
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

JOBS, CLUSTER, SERVER = "Jobs", "Cluster", "Server"
RESEARCH, VODA = "Simulation and research", "Voda's names"


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb, or a family of verbs such as `batuta queues apply`."""

    name: str
    section: str
    sentence: str
    module: str
    attribute: str = ""  # the function, or the Typer of a family; empty: the name of the verb
    command_class: str = ""  # a class of the same module that parses the command line, if not the default one

    def load(self) -> Any:
        module = import_module(f"batuta.cli.{self.module}")
        found = getattr(module, self.attribute or self.name)
        if isinstance(found, typer.Typer):
            command: Any = get_group(found)
            command.name = self.name
        else:
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            chosen = {"cls": getattr(module, self.command_class)} if self.command_class else {}
            alone.command(name=self.name, **chosen)(found)
            command = get_command(alone)
            command.help = _spaced(command.help)
        command.rich_help_panel = self.section
        return command


def _spaced(help: str | None) -> str | None:
    """Make a paragraph of each indented line, such as an example: the others are wrapped together."""
    return help and re.sub(r"\n(?= +\S)", "\n\n", help)


VERBS = (
    Verb("launch", JOBS, "Submit a task file or a command.", "launch", command_class="LaunchCommand"),
    Verb("trial", JOBS, "Run a task for a short while at several sizes, and tell how it scales.", "trial"),
    Verb("queue", JOBS, "List jobs, the newest first.", "jobs"),
    Verb("status", JOBS, "Show the cluster at a glance, or everything about one job.", "jobs"),
    Verb("logs", JOBS, "Print what a job prints, and follow it until it ends.", "logs"),
    Verb("explain", JOBS, "Tell why a job waits, or has the size that it has.", "explain"),
    Verb("eta", JOBS, "Tell when jobs will start and finish.", "forecast"),
    Verb("result", JOBS, "Print what a job returned.", "explain"),
    Verb("cancel", JOBS, "End jobs for good.", "jobs"),
    Verb("stop", JOBS, "Park jobs until `batuta start`.", "jobs"),
    Verb("start", JOBS, "Let parked jobs run again, from their last checkpoint.", "jobs"),
    Verb("resize", JOBS, "Change how many nodes an elastic job asks for.", "jobs"),
    Verb("history", JOBS, "List the jobs that have ended, and how they did.", "jobs"),
    Verb("top", CLUSTER, "Watch GPUs, jobs and decisions live; q or Ctrl-C leaves.", "top"),
    Verb("nodes", CLUSTER, "List nodes; take them out of service and back.", "nodes", "app"),
    Verb("gpus", CLUSTER, "Show every GPU, and which job has it.", "nodes"),
    Verb("health", CLUSTER, "Show the rules about errors of GPUs, and try them on a log.", "health", "app"),
    Verb("share", CLUSTER, "Try out limits on GPU memory and compute; see how much each process has.", "share", "app"),
    Verb("queues", CLUSTER, "List queues, describe one; try out quota, and apply it.", "queues", "app"),
    Verb("policy", CLUSTER, "Show or change the policy that decides.", "policy", "app"),
    Verb("shadow", CLUSTER, "Tell what the policy that only watches would have done.", "replay"),
    Verb("whatif", CLUSTER, "Tell what a change would do to every job.", "forecast"),
    Verb("replay", CLUSTER, "Run the journal's past again under other policies.", "replay"),
    Verb("report", CLUSTER, "Tell where the GPU time went, by day, queue and user.", "report"),
    Verb("events", CLUSTER, "Print what happened, and with --follow what happens.", "events"),
    Verb("up", SERVER, "Turn this machine into a cluster.", "server"),
    Verb("down", SERVER, "Stop the server.", "server"),
    Verb("backup", SERVER, "Copy the journal to a file, also while the server runs.", "backup"),
    Verb("restore", SERVER, "Make a backup the journal of this machine's server, which must be stopped.", "backup"),
    Verb("install", SERVER, "Print or apply what a Kubernetes cluster needs.", "kube"),
    Verb("operator", SERVER, "Schedule a Kubernetes cluster until told to end.", "kube"),
    Verb("device-plugin", SERVER, "Offer shares of this node's GPUs to its kubelet.", "kube", "device_plugin"),
    Verb("agent", SERVER, "Watch the GPUs of this node, and tell the cluster how they are used.", "agent"),
    Verb("doctor", SERVER, "Check machine, state directory, server and cluster.", "doctor"),
    Verb("dashboard", SERVER, "Print a link to the dashboard, and open it.", "token"),
    Verb("audit", SERVER, "List which user did what, the oldest first.", "audit"),
    Verb("token", SERVER, "Make, list and revoke tokens.", "token", "app"),
    Verb("completion", SERVER, "Complete with the Tab key: print a script, or install it.", "completion", "app"),
    Verb("simulate", RESEARCH, "Replay a workload under one policy.", "simulate"),
    Verb("compare", RESEARCH, "Compare policies on the same workloads and the same seeds.", "simulate"),
    Verb("allocate", RESEARCH, "Run one policy on a snapshot: how many GPUs for each job?", "policy"),
    Verb("policies", RESEARCH, "List the policies, built in and installed.", "policy"),
    Verb("trace", RESEARCH, "Look at workloads, convert them, generate new ones.", "trace", "app"),
    Verb("vgpu", RESEARCH, "Make virtual GPUs, look at them, inject faults, run programs on them.", "vgpu", "app"),
    Verb("create", VODA, "The same as batuta launch -d FILE.", "launch"),
    Verb("get", VODA, "batuta get jobs: the same as batuta queue -a.", "jobs", "get"),
    Verb("delete", VODA, "The same as batuta cancel NAME -y.", "jobs"),
)


class LazyCommands(UserDict[str, Any]):
    """Commands by name, each loaded on first use."""

    def __init__(self) -> None:
        super().__init__()
        self.data = {verb.name: verb for verb in VERBS}

    def __getitem__(self, name: str) -> Any:
        if isinstance(self.data[name], Verb):
            self.data[name] = self.data[name].load()
        return self.data[name]


class CommandGroup(TyperGroup):
    """A verb with verbs of its own, such as `batuta nodes`; its help lists whole first sentences."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for one in (self, *self.commands.values()):
            one.help = _spaced(one.help)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = [
            (name, command.get_short_help_str(limit=10_000))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class RootGroup(TyperGroup):
    """The group of all verbs. Its help lists them in sections, without loading them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = LazyCommands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        longest = max(len(verb.name) for verb in VERBS)
        for verb in VERBS:
            sections.setdefault(verb.section, []).append((f"{verb.name:<{longest}}", verb.sentence))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)
