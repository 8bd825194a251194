"""Read the file of health rules, Batuta's own or an edited copy, and try it on a log without acting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final

import yaml

from batuta.core.health import HealthStateMachine
from batuta.core.health_record import WHOLE_NODE, BurnIn, Mend, Order, RestartJob, TakeOut, Target, Verdict, classify
from batuta.core.health_rules import Action, Finding, HealthLimits, HealthRules, Rule, Scope, Source
from batuta.core.health_signals import Figure
from batuta.gpu.health.kernel_log import MAX_LINE_CHARS, log_problems, parse_line, timestamp_s
from batuta.spec.problem import InputError, read_text, sorted_problems
from batuta.spec.quantity import parse_duration_s
from batuta.spec.yaml_reader import StrictYamlReader, YamlNode

VERSION: Final = 1
_TOP: Final = ("version", "limits", *Source)
_COMMON: Final = ("means", "action", "scope", "at", "follows", "counts", "vendor")
_KEYS: Final = {
    Source.XID: ("code", "if", *_COMMON),
    Source.SXID: ("code", "if", *_COMMON),
    Source.LOG: ("if", *_COMMON),
    Source.NVML: ("figure", "from", *_COMMON),
    Source.BEHAVIOUR: ("if", *_COMMON),
}
_NEEDED: Final = {Source.XID: "code", Source.SXID: "code", Source.NVML: "figure"}
"""What a rule is found by; `if` in the other tables."""
_HIGHEST: Final = 999_999
_RANGE: Final = re.compile(r"([0-9]{1,6})(?:\s*-\s*([0-9]{1,6}))?")
_NODE = "node"
_FLAG: Final = ("true", "false")


def default_rules_text() -> str:
    return resources.files("batuta").joinpath("data", "health-rules.yaml").read_text(encoding="utf-8")


def read_rules(path: Path | None = None) -> HealthRules:
    """Return the rules of a file, or Batuta's own; raise InputError with all problems of the file."""
    if path is None:
        return parse_rules(default_rules_text(), "health-rules.yaml")
    return parse_rules(read_text(path), str(path))


def read_health(log: Path | str | None, rules: Path | str | None) -> HealthRules:
    """Return the rules of a file, or Batuta's own; raise InputError with all problems of the file and the log."""
    problems = log_problems("--health-log", None if log is None else Path(log), f"sudo setfacl -m u:$USER:r {log}")
    try:
        found = read_rules(None if rules is None else Path(rules))
    except InputError as error:
        raise InputError([*problems, *error.problems]) from None
    if problems:
        raise InputError(problems)
    return found


def parse_rules(text: str, file: str) -> HealthRules:
    reader = _RulesReader(file)
    roots = reader.compose_sound(text)
    rules = reader.rules(roots[0]) if len(roots) == 1 else None
    if len(roots) > 1:
        reader.fault(roots[1], "holds a second document", "put all rules into one")
    if reader.problems or rules is None:
        raise InputError(sorted_problems(reader.problems))
    return rules


class _RulesReader(StrictYamlReader):
    """Reads rules node by node and collects problems."""

    def rules(self, root: YamlNode) -> HealthRules:
        top = self.section(root, "the health rules", _TOP)
        if "version" not in top:
            self.fault(root, "says no version", f"begin with version: {VERSION}")
        elif self.text(top["version"], "version") != str(VERSION):
            self.fault(top["version"], "is of a version that is not known", f"write version: {VERSION}")
        limits = self._limits(top.get("limits"))
        rules: list[Rule] = []
        for source in Source:
            if source in top:
                rules += self._table(top[source], source)
        if not rules and not self.problems:
            self.fault(root, "holds no rules", f"list some under {', '.join(Source)}")
        return HealthRules(tuple(rules), limits)

    def _table(self, node: YamlNode, source: Source) -> list[Rule]:
        rules: list[Rule] = []
        settled: list[tuple[int, int, int]] = []
        for item in self.sequence(node, source):
            read = self._rule(item, source)
            line = item.start_mark.line + 1
            for rule in read:
                before = [was for first, last, was in settled if first <= rule.first and rule.last <= last]
                if before and source.has_codes:
                    what = f"{rule.first}" if rule.first == rule.last else f"{rule.first}-{rule.last}"
                    self.fault(item, f"the rule for {source} {what} is never used: line {before[0]} decides")
                if rule.pattern is None:
                    settled.append((rule.first, rule.last, line))
            rules += read
        return rules

    def _rule(self, item: YamlNode, source: Source) -> list[Rule]:
        """Return one rule for each range of codes; none when there is a problem."""
        count = len(self.problems)
        keys = _KEYS[source]
        values = self.section(item, f"a rule of {source}", keys)
        for key in ("means", "action", _NEEDED.get(source, "if")):
            if key not in values:
                self.fault(item, f"a rule of {source} needs {key}", f"known: {', '.join(keys)}")
        means = self.text(values["means"], "means") if "means" in values else ""
        action = Action(self._word(values, "action", [*Action]) or Action.IGNORE)
        codes = self._codes(values["code"]) if "code" in values else self._values(values, source)
        figure = self._word(values, "figure", [*Figure])
        pattern = re.compile(f"^{re.escape(figure)}$") if figure is not None else None
        rule = Rule(
            source,
            means or "",
            action,
            self._scope(values, source, action),
            pattern=pattern or self._pattern(values.get("if")),
            at_idle=self._at_idle(values, action),
            follows=self._word(values, "follows", _FLAG) == "true",
            counts=self._word(values, "counts", _FLAG) != "false",
        )
        if len(self.problems) > count:
            return []
        return [replace(rule, first=first, last=last) for first, last in codes]

    def _codes(self, node: YamlNode) -> list[tuple[int, int]]:
        if isinstance(node, yaml.SequenceNode):
            items = self.sequence(node, "code")
            if not items:
                self.fault(node, "code needs at least one", "write 79, 144-150, [13, 31] or any")
            return [pair for item in items for pair in self._codes(item)]
        text = self.text(node, "code")
        if text is None:
            return []
        if text == "any":
            return [(0, _HIGHEST)]
        match = _RANGE.fullmatch(text)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            self.fault(node, f"code cannot be {text[:60]!r}", "write 79, 144-150, [13, 31] or any")
            return []
        return [(first, last)]

    def _values(self, values: dict[str, YamlNode], source: Source) -> list[tuple[int, int]]:
        """Return the values at which a metric is too high; lines of logs have no values."""
        if source is not Source.NVML:
            return [(0, 0)]
        least = self.whole(values["from"], "from", 1, _HIGHEST) if "from" in values else 1
        return [(least or 1, _HIGHEST)]

    def _word(self, values: dict[str, YamlNode], key: str, words: Sequence[str]) -> str | None:
        return self.word(values[key], key, words) if key in values else None

    def _pattern(self, node: YamlNode | None) -> re.Pattern[str] | None:
        text = self.text(node, "if") if node is not None else None
        if node is None or text is None:
            return None
        try:
            return re.compile(text)
        except re.error as error:
            self.fault(node, f"if is not a regular expression: {error}", "put it between single quotes")
            return None

    def _scope(self, values: dict[str, YamlNode], source: Source, action: Action) -> Scope:
        of_gpu = source in {Source.XID, Source.NVML} and action is not Action.REBOOT
        return Scope(self._word(values, "scope", [*Scope]) or (Scope.GPU if of_gpu else Scope.NODE))

    def _at_idle(self, values: dict[str, YamlNode], action: Action) -> bool:
        is_idle = self._word(values, "at", ["now", "idle"]) == "idle"
        if is_idle and not action.takes_out:
            self.fault(values["at"], f"{action} cannot wait", "at: idle is for reset GPU, reboot and replace")
        return is_idle

    def _limits(self, node: YamlNode | None) -> HealthLimits:
        values = self.section(node, "limits", tuple(_LIMITS))
        found = {field: read(self, values[key], key) for key, (field, read) in _LIMITS.items() if key in values}
        limits = replace(HealthLimits(), **{field: value for field, value in found.items() if value is not None})
        if limits.longest_probation_s < limits.probation_s:
            at = values.get("longest-probation", values.get("probation"))
            self.blame(at, "longest-probation is shorter than probation", "make it at least as long")
        return limits

    def _seconds(self, node: YamlNode, key: str) -> float | None:
        return self.parsed(node, key, parse_duration_s)


_LIMITS: Final[dict[str, tuple[str, Callable[[_RulesReader, YamlNode, str], Any]]]] = {
    "jobs": ("jobs", lambda reader, node, key: reader.whole(node, key, 2, 1000)),
    "within": ("within_s", _RulesReader._seconds),
    "restarts": ("restarts", lambda reader, node, key: reader.whole(node, key, 0, 1000)),
    "incident": ("incident_s", _RulesReader._seconds),
    "probation": ("probation_s", _RulesReader._seconds),
    "longest-probation": ("longest_probation_s", _RulesReader._seconds),
    "calm": ("calm_s", _RulesReader._seconds),
    "share": ("share", lambda reader, node, key: reader.number(node, key, 0.0, 1.0)),
}
"""By key in the file: the field of `HealthLimits`, and how its value is read; None when it is wrong."""


@dataclass(frozen=True, slots=True)
class DryRunResult:
    """One line that matches a rule, or that reports an error without a rule."""

    line: int
    what: str  # `Xid 79`
    where: str  # the address of the GPU or switch; empty: not known
    means: str
    action: Action
    done: str


def dry_run_rules(rules: HealthRules, lines: Iterable[str]) -> Iterator[DryRunResult]:
    """Apply rules to a log from its beginning, as if it were of one node that is never repaired.

    A process counts as a job of its own, because logs know no jobs. The limit on the share of nodes that may
    be out of service is lifted. A line without a time has that of the line before.
    """
    run = _DryRun(replace(rules, limits=replace(rules.limits, share=1.0)))
    for number, line in enumerate(lines, start=1):
        tried = run.see(number, line.rstrip("\r\n")[:MAX_LINE_CHARS])
        if tried is not None:
            yield tried


class _DryRun:
    def __init__(self, rules: HealthRules) -> None:
        self._rules, self._book = rules, HealthStateMachine(rules)
        self._gpus: dict[str, int] = {}
        self._now_s = 0.0

    def see(self, number: int, line: str) -> DryRunResult | None:
        stamp = timestamp_s(line)
        self._now_s = self._now_s if stamp is None else stamp
        finding, where = self._finding(line)
        if finding.source is Source.LOG and self._rules.find(Source.LOG, 0, line) is None:
            return None
        self._book.add_node(_NODE, max(1, len(self._gpus)))
        here = Target(_NODE, WHOLE_NODE if finding.gpu is None else finding.gpu)
        verdict = classify(self._rules, finding, self._book.look(here).incidents)
        orders = self._book.found(finding)
        rule = verdict.rule
        means = rule.means if rule is not None else "no rule knows it"
        done = _outcome_text(verdict, orders, where)
        return DryRunResult(number, finding.name, where, means, verdict.action, done)

    def _finding(self, line: str) -> tuple[Finding, str]:
        error = parse_line(line)
        if error is None:
            return Finding(self._now_s, _NODE, Source.LOG, text=line), ""
        # An error of a switch is about the node.
        is_gpu = error.source is Source.XID
        gpu = self._gpus.setdefault(error.pci, len(self._gpus)) if is_gpu else None
        jobs = (f"pid {error.pid}",) if error.pid is not None else ()
        return Finding(self._now_s, _NODE, error.source, error.code, error.text, gpu, jobs), error.pci


def _outcome_text(verdict: Verdict, orders: list[Order], where: str) -> str:
    parts = [part for order in orders if (part := _order_text(order, where))]
    if parts:
        return ", ".join(parts)
    if verdict.action is Action.IGNORE:
        return f"nothing: {verdict.note}" if verdict.note else "nothing"
    if verdict.action is Action.RESTART_JOB:
        return "restart the job that has it"
    if verdict.at_idle:
        return f"{verdict.action} when no job has it"
    return "nothing more: it is out of service"


def _order_text(order: Order, where: str) -> str:
    match order:
        case RestartJob(job=job):
            return f"restart the job of {job}"
        case TakeOut(target=target):
            return "take the node out" if target.gpu == WHOLE_NODE else f"take GPU {where} out"
        case Mend(remedy=remedy):
            return f"{remedy}" if remedy is not Action.REPLACE else "have an administrator look"
        case BurnIn():
            return "burn in"
        case _:
            return ""
