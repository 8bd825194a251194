"""What the chart's templates may say: the part of the language that is known, and the names the code knows.

That they are read as Helm reads them is in tests/kube/test_chart.py, beside the real Helm.
"""

from typing import Any

import pytest

from batuta.backends.kube import names
from batuta.backends.kube.install.chart import FUNCTIONS, ORDER, manifests
from batuta.backends.kube.install.go_template import TemplateError, Templates
from batuta.backends.kube.kueue import kinds as kueue
from batuta.backends.kube.operator_config import JOURNAL_URL_VARIABLE, Api
from batuta.spec.problem import InputError
from tests.support.chart import CHART, VARIANTS, installed, operator_config_of, release_of


def rendered(text: str, data: object = None) -> str:
    templates = Templates(FUNCTIONS)
    templates.read("a.yaml", text)
    return templates.render("a.yaml", data)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\n{{ lookup 1 }}", "a.yaml:2: there is no function lookup"),
        ("{{ . | b64enc }}", "there is no function b64enc"),
        ('{{ template "x" . }}', "there is no function template"),
        ("{{ break }}", "there is no function break"),
        ("{{ if . }}a", "a.yaml:1: if without an end"),
        ("a\n\n{{ end }}", "a.yaml:3: end without a beginning"),
        ("{{ with . }}a{{ else with . }}b{{ end }}", "with without an end"),
        ("{{ `raw` }}", "cannot read '`raw`'"),
        ("{{ (not . }}", "a ) is missing"),
        ("{{ . ) }}", "is not expected here"),
        ("{{ . | }}", "a value is missing"),
        ("{{ 'a", "an action that cannot be read"),
    ],
)
def test_what_is_not_known_is_refused_when_it_is_read(text: str, said: str):
    with pytest.raises(TemplateError) as caught:
        Templates(FUNCTIONS).read("a.yaml", text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ .a.c }}", r"there is no \.a\.c"),
        ("{{ .a }}", "cannot be printed; use toYaml"),
        ('{{ include "nothing" . }}', "there is no template nothing"),
        ('{{ printf "%s" }}', "with 0 values"),
        ('{{ printf "%v" 1 }}', "with 1 values"),
    ],
)
def test_a_value_that_is_not_there_or_cannot_be_shown_is_an_error(text: str, said: str):
    with pytest.raises(TemplateError, match=said):
        rendered(text, {"a": {"b": 1}})


def test_what_a_template_fails_with_is_a_problem_of_the_input():
    with pytest.raises(InputError, match="needs a name"):
        rendered('{{ fail "it needs a name" }}')


def test_every_template_has_its_place_in_the_order():
    assert sorted(ORDER) == sorted(path.name for path in (CHART / "templates").glob("*.yaml"))


def test_the_operator_listens_and_finds_its_journal_where_the_chart_says():
    (container,) = installed("Deployment", VARIANTS["PostgreSQL"], "batuta-operator")["spec"]["template"]["spec"][
        "containers"
    ]
    assert [port["containerPort"] for port in container["ports"]] == [Api().port]
    assert JOURNAL_URL_VARIABLE in [one["name"] for one in container["env"]]


def test_the_operator_may_read_all_that_it_looks_for():
    (rules,) = (
        one["rules"]
        for one in manifests(release_of({}))
        if (one["kind"], one["metadata"]["name"]) == ("ClusterRole", "batuta-operator")
    )
    read = {
        (group, resource)
        for rule in rules
        if {"list", "watch"} <= {*rule["verbs"]}
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    ours = {(names.GROUP, names.PLURAL), (names.GROUP, names.TRIAL_PLURAL)}
    assert ours | {(kueue.GROUP, kind.plural) for kind in kueue.SETTINGS} <= read


def network_policies(values: dict[str, Any]) -> dict[str, Any]:
    found = (one for one in manifests(release_of(values)) if one["kind"] == "NetworkPolicy")
    return {one["metadata"]["name"]: one["spec"]["ingress"][0]["from"] for one in found}


def test_operator_and_agents_are_closed_by_default_and_one_value_each_opens_them():
    agents = {"agent": {"enabled": True}}
    own: list[dict[str, Any]] = [{"podSelector": {}}]
    assert network_policies(agents) == {"batuta-operator": own, "batuta-agent": own}
    assert network_policies(agents | {"networkPolicy": {"enabled": False}}) == {}
    assert "openMetrics: false" in operator_config_of({})
    assert "openMetrics: true" in operator_config_of({"openMetrics": True})


def test_peers_are_let_in_beside_the_pods_of_the_namespace():
    peer = {"namespaceSelector": {"matchLabels": {"team": "ml"}}}
    found = network_policies({"networkPolicy": {"ingressFrom": [peer]}})
    assert found == {"batuta-operator": [{"podSelector": {}}, peer]}
