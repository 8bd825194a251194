"""values.yaml, its schema and the README's table are those that follow from the values' classes."""

import json
import re

import yaml

from batuta import __version__
from batuta.backends.kube.install.chart_files import readme_with_table, values_schema, values_yaml
from batuta.backends.kube.install.values import Values
from tests.support.chart import CHART

STALE = "run: python -m batuta.backends.kube.install.chart_files deploy/helm/batuta"


def test_values_yaml_is_up_to_date():
    assert (CHART / "values.yaml").read_text() == values_yaml(), STALE


def test_values_yaml_holds_the_defaults():
    defaults = Values().model_dump(mode="json", by_alias=True, exclude={"global_"})
    assert yaml.safe_load(values_yaml()) == defaults


def test_every_value_is_explained():
    lines = values_yaml().splitlines()
    for number, line in enumerate(lines):
        if re.match(r"\s*[A-Za-z]+:", line) and not re.match(r"\s+(cpu|memory):", line):
            assert lines[number - 1].lstrip().startswith("# "), line


def test_the_schema_is_up_to_date():
    assert (CHART / "values.schema.json").read_text() == values_schema(), STALE


def test_the_schema_lets_no_unknown_key_pass():
    schema = json.loads(values_schema())
    assert schema["additionalProperties"] is False
    assert all(one["additionalProperties"] is False for one in schema["$defs"].values() if "properties" in one)


def test_the_readme_has_the_table():
    text = (CHART / "README.md").read_text()
    assert text == readme_with_table(text), STALE


def test_the_chart_has_the_version_of_the_package():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
