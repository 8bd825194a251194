"""`batuta install` renders the chart as Helm does, and a real API server takes what comes out."""

import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batuta.backends.kube.install.chart import FUNCTIONS, manifests, read_definitions
from batuta.backends.kube.install.go_template import Templates
from batuta.spec.problem import InputError
from tests.support.chart import REFUSED, VARIANTS, Helm, Json, by_key, comparable, release_of
from tests.support.kube.api import ApiError
from tests.support.kube.control_plane import CommandFailed, ControlPlane, wait_until
from tests.support.kube.modules import module_files
from tests.support.kube.programs import program, why_not
from tests.support.kube_schemas import LOCATION, write_schemas

Conform = Callable[[str], subprocess.CompletedProcess[str]]

PROMETHEUS_OPERATOR = ("github.com/prometheus-operator/prometheus-operator", "v0.85.0")
MONITORING = ("servicemonitors", "prometheusrules")
ON_NODES = "chart-on-nodes"
"""A namespace that allows what agents and device plugins need."""


@pytest.fixture(scope="module")
def find_program() -> Callable[[str], Path]:
    def find(name: str) -> Path:
        if (problem := why_not([name])) is not None:
            if os.environ.get("CI"):
                pytest.fail(f"no {name}, and CI must have it: {problem}", pytrace=False)
            pytest.skip(f"no {name}: {problem}")
        return program(name)

    return find


@pytest.fixture(scope="module")
def helm(find_program: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(find_program("helm"), tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="module")
def cluster_with_crds(cluster: ControlPlane) -> ControlPlane:
    """The shared control plane, which knows UnifiedJobs and what the Prometheus operator watches."""
    folder = module_files(*PROMETHEUS_OPERATOR) / "example" / "prometheus-operator-crd"
    for kind in MONITORING:
        cluster.apply(folder / f"monitoring.coreos.com_{kind}.yaml")
    cluster.apply(read_definitions())
    for crd in ("unifiedjobs.batuta.dev", *(f"{kind}.monitoring.coreos.com" for kind in MONITORING)):
        cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", f"crd/{crd}")
    return cluster


@pytest.fixture(scope="module")
def conform(
    find_program: Callable[[str], Path],
    cluster_with_crds: ControlPlane,
    tmp_path_factory: pytest.TempPathFactory,
) -> Conform:
    """kubeconform with the schemas of this very API server."""
    kubeconform, folder = find_program("kubeconform"), tmp_path_factory.mktemp("schemas")
    wait_until(lambda: "ServiceMonitor" in cluster_with_crds.api.text("/openapi/v2"), "the types to be published")
    write_schemas(cluster_with_crds.api.get("/openapi/v2"), folder)

    def check(manifests: str) -> subprocess.CompletedProcess[str]:
        command = [str(kubeconform), "-strict", "-summary", "-schema-location", f"{folder}/{LOCATION}"]
        return subprocess.run(command, input=manifests, capture_output=True, text=True, check=False)

    return check


@pytest.fixture(scope="module")
def home(cluster: ControlPlane) -> Iterator[str]:
    """A restricted namespace for the release, and those that a set of values names."""
    names = ("chart-home", "chart-team-a", "chart-team-b", ON_NODES)
    for name in names:
        cluster.new_namespace(name)
    cluster.kubectl("label", "namespace", names[0], "pod-security.kubernetes.io/enforce=restricted")
    yield names[0]
    for name in names:
        cluster.delete_namespace(name)


def runs_on_nodes(values: Json) -> bool:
    return any(values.get(part, {}).get("enabled") for part in ("agent", "devicePlugin", "logCollector"))


@pytest.mark.parametrize("variant", ["defaults", "observed", "every field of a pod"])
def test_helm_finds_nothing_to_complain_about(helm: Helm, variant: str):
    linted = helm.lint(VARIANTS[variant])
    assert linted.returncode == 0, linted.stdout + linted.stderr
    assert "[WARNING]" not in linted.stdout


@pytest.mark.parametrize("variant", VARIANTS)
def test_helm_and_batuta_install_make_the_same_objects(helm: Helm, variant: str):
    values = VARIANTS[variant]
    by_helm = {key: comparable(one) for key, one in by_key(helm.objects(values)).items()}
    ours = {key: comparable(one) for key, one in by_key(manifests(release_of(values))).items()}
    assert set(ours) == set(by_helm)
    for key, manifest in ours.items():
        assert manifest == by_helm[key], key


@pytest.mark.parametrize("seed", range(6))
def test_they_do_so_for_values_that_were_never_thought_of_together(helm: Helm, seed: int):
    # given some sets of values, laid over each other
    chosen = random.Random(seed).sample(sorted(VARIANTS), 4)
    values: Json = {}
    for name in chosen:
        values = laid_over(values, VARIANTS[name])
    # when Helm refuses them, so do we
    if helm.render(values).returncode != 0:
        with pytest.raises(InputError):
            manifests(release_of(values))
        return
    # else both make the same of them
    by_helm = {key: comparable(one) for key, one in by_key(helm.objects(values)).items()}
    assert {key: comparable(one) for key, one in by_key(manifests(release_of(values))).items()} == by_helm


def laid_over(below: Json, above: Json) -> Json:
    """Mappings are merged, all else is replaced."""
    both = {key for key in below.keys() & above.keys() if isinstance(below[key], dict)}
    return below | above | {key: laid_over(below[key], above[key] or {}) for key in both}


@pytest.mark.parametrize(
    "value",
    [
        {"fullnameOverride": "on", "nameOverride": "yes"},
        {"priorityClassName": "1e3", "agent": {"enabled": True, "runtimeClassName": "0"}},
        {"journal": {"type": "postgres", "postgres": {"secretName": "007", "secretKey": "1.0"}}},
        {"topologySpread": {"topologyKey": "a: #b"}, "podAnnotations": {"no": "null", "#": " \n\ttwo\n\n"}},
        {"extraEnv": [{"name": "A", "value": 'it\'s "so": {x}\\ \u00e9\u2028\n  - y'}]},
        {"queues": {"a.yaml": "  first\n\n# b\n    c: 'd'\n\n\n", "b.yaml": "", "on": "true"}},
    ],
    ids=str,
)
def test_a_text_stays_the_text_that_it_is(helm: Helm, value: Json):
    by_helm = {key: comparable(one) for key, one in by_key(helm.objects(value, "true", "null")).items()}
    ours = {key: comparable(one) for key, one in by_key(manifests(release_of(value, "true", "null"))).items()}
    assert ours == by_helm
    assert {namespace for _, namespace, _ in ours} == {"", "null"}


SNIPPETS = {
    "trimmed on the left": "a \n {{- 1 }} b",
    "trimmed on the right": "a {{ 1 -}} \n b",
    "a number that begins like a trim": "a {{-3 }}|{{- 3 }}",
    "comments": "a {{- /* b }} */ -}} c{{/* d */}}",
    "else if": '{{ range .words }}{{ if eq . "a" }}1{{ else if eq . "b" "c" }}2{{ else }}3{{ end }}{{ end }}',
    "with, and what is empty": "{{ with .empty }}{{ . }}{{ else }}{{ .number }}{{ end }}",
    "range over a mapping": "{{ range $key, $value := .mapping }}{{ $key }}={{ $value }};{{ . }} {{ end }}",
    "range over a list with its indexes": "{{ range $at, $word := .words }}{{ $at }}{{ $word }}{{ end }}",
    "range over nothing": "{{ range .none }}a{{ else }}b{{ end }}",
    "a variable that an inner block changes": "{{ $a := 1 }}{{ if true }}{{ $a = 2 }}{{ end }}{{ $a }}",
    "a variable of an inner block": "{{ $a := 1 }}{{ if true }}{{ $a := 2 }}{{ end }}{{ $a }}",
    "the root, from within": "{{ with .mapping }}{{ range $.words }}{{ $.number }}{{ end }}{{ end }}",
    "a pipeline": '{{ "a-b--" | trunc 4 | replace "-" "+" | printf "%s %q %d %s" "x" "y" 3 }}',
    "groups": '{{ (dict "a" (dict "b" 1)).a.b }}{{ if and (or false .number) (not .empty) }}c{{ end }}',
    "true and false": "{{ true }} {{ not true }} {{ ternary 1 2 false }}",
    "quotes": '{{ quote .number }} {{ .odd | quote }} {{ printf "%q" .odd }}',
    "lines that are indented": '{{ "a\\n\\n b\\n" | nindent 2 }}|',
    "what is there wins": "{{ range (tuple .mapping .deep) }}{{ merge (dict) . $.other | toYaml }}{{ end }}",
    "parts of texts": '{{ regexReplaceAll "-+$" "ab--" "" }}{{ contains "b" "abc" }}{{ dir "/a/b/c" }}',
    "membership": '{{ has "a" .words }}{{ hasKey .mapping "z" }}{{ join "," .words }}{{ gt (int "3") 2 }}',
}
"""Templates, each with something of the language in it."""
DATA: Json = {
    "number": 7,
    "empty": "",
    "none": [],
    "words": ["a", "b", "c", "d"],
    "mapping": {"z": 1, "a": ""},
    "deep": {"inner": {"x": 1}},
    "other": {"a": "filled", "inner": {"x": 2, "v": [True]}, "more": "text"},
    "odd": 'tab\t "quotes" back\\slash \u00e9',
}


def test_the_language_of_templates_is_read_as_go_reads_it(helm: Helm, tmp_path: Path):
    # given a chart whose templates are these, each of which is printed as a text of JSON
    chart = tmp_path / "language"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: language\nversion: 1.0.0\n")
    defined = [f'{{{{ define "{number}" }}}}{text}{{{{ end }}}}' for number, text in enumerate(SNIPPETS.values())]
    shown = [f'n{number}: {{{{ include "{number}" .Values | toJson }}}}' for number in range(len(SNIPPETS))]
    (chart / "templates" / "all.yaml").write_text("\n".join([*defined, *shown]))
    # when Helm renders it
    (by_helm,) = helm.objects(DATA, chart=chart)
    # then so do we
    for number, (name, text) in enumerate(SNIPPETS.items()):
        templates = Templates(FUNCTIONS)
        templates.read(name, text)
        assert templates.render(name, DATA) == by_helm[f"n{number}"], name


@pytest.mark.parametrize(
    "name", ["batuta", "blue", "my-batuta", "x" * 53, "y" * 43 + "-" + "y" * 9, "a-conductor-of-gpus"]
)
def test_names_follow_the_release_in_the_same_way(helm: Helm, name: str):
    by_helm = by_key(helm.objects({}, name, "elsewhere"))
    assert set(by_key(manifests(release_of({}, name, "elsewhere")))) == set(by_helm)
    assert all(len(key[2]) <= 63 for key in by_helm)


def test_helm_brings_the_definitions_that_batuta_install_brings(helm: Helm):
    found = helm.objects({}, "batuta", "batuta-system", "--include-crds")
    assert [one for one in found if one["kind"] == "CustomResourceDefinition"] == read_definitions()


def test_a_configuration_starts_new_pods_where_it_does_not_take_effect_at_run_time(helm: Helm):
    def checksum(objects: list[Json]) -> str:
        deployment = next(one for one in objects if one["kind"] == "Deployment")
        return deployment["spec"]["template"]["metadata"]["annotations"]["checksum/config"]

    at_run_time = {"config": {"policy": "afs-l", "retention": {"jobs": 5}}, "metricsPerJob": 7}
    for make in (helm.objects, lambda values: manifests(release_of(values))):
        assert checksum(make({})) == checksum(make(at_run_time))
        assert checksum(make({})) != checksum(make({"config": {"kueue": {"readQuota": False}}}))


@pytest.mark.parametrize("case", REFUSED)
def test_bad_values_are_refused_by_both(helm: Helm, case: str):
    values, word = REFUSED[case]
    rendered = helm.render(values)
    assert rendered.returncode != 0
    assert word in rendered.stderr
    with pytest.raises(InputError, match=word):
        release_of(values)


def test_the_api_server_takes_every_object(helm: Helm, cluster_with_crds: ControlPlane, home: str):
    """All sets of values in one go: kubectl learns all kinds anew each time that it is run."""
    objects = [
        one
        for values in VARIANTS.values()
        for one in helm.objects(values, "batuta", ON_NODES if runs_on_nodes(values) else home)
    ]
    said = cluster_with_crds.apply(objects, "--dry-run=server", "--validate=strict", "--warnings-as-errors")
    assert said.count("(server dry run)") == len(objects)


def test_kubeconform_finds_nothing_wrong(helm: Helm, conform: Conform):
    objects = [one for values in VARIANTS.values() for one in helm.objects(values)]
    checked = conform("".join(f"---\n{json.dumps(one)}\n" for one in objects))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"Valid: {len(objects)}," in checked.stdout
    assert "Skipped: 0" in checked.stdout


def test_a_key_that_the_api_does_not_know_would_not_pass(
    helm: Helm, cluster_with_crds: ControlPlane, conform: Conform, home: str
):
    """Otherwise the two tests above prove nothing."""
    objects = helm.objects({}, "batuta", home)
    service = next(one for one in objects if one["kind"] == "Service")
    service["spec"]["prots"] = []
    with pytest.raises(CommandFailed, match="prots"):
        cluster_with_crds.apply([service], "--dry-run=server", "--validate=strict")
    checked = conform(json.dumps(service))
    assert checked.returncode != 0
    assert "prots" in checked.stdout


@pytest.mark.parametrize("variant", ["defaults", "one replica on a volume", "PostgreSQL"])
def test_its_pods_may_run_where_pod_security_is_restricted(helm: Helm, cluster: ControlPlane, home: str, variant: str):
    values = VARIANTS[variant] | {"serviceAccount": {"create": False, "name": "default"}}
    objects = helm.objects(values, "batuta", home)
    template = next(one for one in objects if one["kind"] == "Deployment")["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod"} | template
    pod["metadata"] = {"name": "operator", "namespace": home} | template["metadata"]
    assert cluster.api.create(f"/api/v1/namespaces/{home}/pods?dryRun=All", pod)["kind"] == "Pod"

    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(ApiError, match="violates PodSecurity"):
        cluster.api.create(f"/api/v1/namespaces/{home}/pods?dryRun=All", pod)


def test_an_upgrade_by_helm_leaves_the_certificate_of_the_operators(
    helm: Helm, cluster_with_crds: ControlPlane, home: str
):
    cluster, values = (
        cluster_with_crds,
        {"replicas": 0, "rbac": {"userRoles": False}, "admissionPolicy": {"enabled": False}},
    )
    helm.install(values, "upgraded", home, cluster.kubeconfig_path)
    kept = {
        f"/api/v1/namespaces/{home}/secrets/upgraded-batuta-tls": {"tls.crt": "b3Vycw=="},
        f"/api/v1/namespaces/{home}/configmaps/upgraded-batuta-ca": {"ca.crt": "ours"},
    }
    for path, data in kept.items():
        assert "data" not in cluster.api.get(path)
        cluster.api.patch(path, {"data": data})
    helm.install(values | {"metricsPerJob": 7}, "upgraded", home, cluster.kubeconfig_path)
    assert {path: cluster.api.get(path)["data"] for path in kept} == kept
