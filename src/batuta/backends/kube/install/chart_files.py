"""What of the Helm chart is generated: values.yaml, its schema, and the table in the README.

python -m batuta.backends.kube.install.chart_files deploy/helm/batuta writes them.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from batuta.backends.kube.install.values import Values
from batuta.backends.kube.settings import Settings

BEGIN, END = "<!-- values -->", "<!-- /values -->"
_HEAD = """\
# Made from batuta.backends.kube.install.values by
#   python -m batuta.backends.kube.install.chart_files deploy/helm/batuta
"""
_WIDTH = 110


def values_yaml() -> str:
    """All values with their defaults, each below a comment that says what it is."""
    return _HEAD + "".join(_commented(Values(), 0))


def values_schema() -> str:
    schema = Values.model_json_schema(by_alias=True)
    _drop_titles(schema)
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema, indent=2) + "\n"


def values_table() -> str:
    rows = [f"| `{name}` | `{default}` | {text} |" for name, default, text in _leaves(Values(), "")]
    return "\n".join(["| value | default | meaning |", "|---|---|---|", *rows])


def readme_with_table(text: str) -> str:
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n{values_table()}\n{END}{rest.partition(END)[2]}"


def _fields(settings: Settings) -> Iterator[tuple[str, Any, str]]:
    """The key, value and meaning of each field; a value is plain data, or settings in turn."""
    plain = settings.model_dump(mode="json", by_alias=True)
    for name, field in type(settings).model_fields.items():
        key, value = field.alias or name, getattr(settings, name)
        if key != "global":
            yield key, value if isinstance(value, Settings) else plain[key], field.description or ""


def _commented(settings: Settings, depth: int) -> Iterator[str]:
    margin = "  " * depth
    for key, value, meaning in _fields(settings):
        yield "\n" if depth == 0 else ""
        yield textwrap.fill(meaning, _WIDTH, initial_indent=f"{margin}# ", subsequent_indent=f"{margin}# ") + "\n"
        if isinstance(value, Settings):
            yield f"{margin}{key}:\n"
            yield from _commented(value, depth + 1)
        else:
            yield textwrap.indent(_block(key, value), margin)


def _block(key: str, value: Any) -> str:
    if isinstance(value, dict | list) and value:
        inner = yaml.safe_dump(value, sort_keys=False)
        return f"{key}:\n{textwrap.indent(inner, '  ')}"
    return f'{key}: ""\n' if value == "" else yaml.safe_dump({key: value}, default_flow_style=False)


def _leaves(settings: Settings, path: str) -> Iterator[tuple[str, str, str]]:
    for key, value, meaning in _fields(settings):
        if isinstance(value, Settings):
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", json.dumps(value, ensure_ascii=False), meaning


def _drop_titles(schema: Any) -> None:
    """Pydantic writes a title for every field, which says the field's name once more."""
    if isinstance(schema, dict) and isinstance(schema.get("title"), str):
        del schema["title"]
    if isinstance(schema, dict | list):
        for inner in schema.values() if isinstance(schema, dict) else schema:
            _drop_titles(inner)


def write(chart: Path) -> None:
    (chart / "values.yaml").write_text(values_yaml(), encoding="utf-8")
    (chart / "values.schema.json").write_text(values_schema(), encoding="utf-8")
    readme = chart / "README.md"
    readme.write_text(readme_with_table(readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
