"""A task file as YAML nodes: one document, scripts to the last blank."""

from __future__ import annotations

from dataclasses import replace

import yaml

from batuta.spec.problem import Problem
from batuta.spec.sound_yaml import SoundReader, explain_tab, join_surrogates
from batuta.spec.yaml_nodes import YamlNode

LARGEST_BYTES = SoundReader.largest_bytes


class TaskReader(SoundReader):
    """Reads the nodes of one task file."""

    size_fix = "a task file is small"

    def compose_task(self, text: str) -> YamlNode | None:
        """The root of a sound document; None when a problem was noted."""
        if not self.check_text(text):
            return None
        if text.lstrip().startswith("{"):
            text = join_surrogates(text)
        root = self.compose(text)
        self.problems = [_explained(problem, text) for problem in self.problems]
        if root is None or not self.resolve([root]):
            return None
        return root

    def script(self, node: YamlNode, what: str) -> str:
        """A text exactly as it stands, to the last blank."""
        if not isinstance(node, yaml.ScalarNode):
            self.text(node, what)
            return ""
        if "\0" in node.value:
            self.fault(node, f"{what} holds a NUL character, which no command can")
        return str(node.value)


def _explained(problem: Problem, text: str) -> Problem:
    """The parser's words in ours, where it is too short."""
    if "found another document" in problem.message:
        return replace(problem, message="holds more than one document", fix="one file is one task")
    return explain_tab(problem, text)
