"""`batuta install` without a cluster: what it prints, and what it refuses."""

import json
import subprocess
import sys

import pytest
import yaml
from typer.testing import CliRunner

from batuta.cli.main import app
from batuta.spec.problem import InputError


def run(*words: str):
    return CliRunner().invoke(app, ["install", *words], catch_exceptions=True)


def printed(*words: str) -> list[dict]:
    done = run(*words)
    assert done.exit_code == 0, done.output
    return list(yaml.safe_load_all(done.stdout))


def kinds(*words: str) -> list[str]:
    return [one["kind"] for one in printed(*words)]


def test_definitions_come_first_and_the_deployment_after_all_it_needs():
    found = kinds()
    assert found[:3] == ["CustomResourceDefinition", "CustomResourceDefinition", "Namespace"]
    for needed in ("ServiceAccount", "ClusterRoleBinding", "RoleBinding", "ConfigMap"):
        assert found.index(needed) < found.index("Deployment")


def test_the_namespace_may_be_somebody_elses():
    assert "Namespace" not in kinds("--no-create-namespace")


def test_everything_is_in_the_namespace_that_was_asked_for():
    places = {one["metadata"].get("namespace") for one in printed("-n", "gpus", "--release", "blue")}
    assert places == {None, "gpus"}


def test_crds_only_prints_nothing_else():
    assert set(kinds("--crds-only")) == {"CustomResourceDefinition"}


def test_json_is_one_list_of_the_same_objects():
    done = run("--output", "json")
    assert json.loads(done.stdout)["items"] == printed()


def test_the_configuration_can_be_read_by_people():
    assert "config.yaml: |\n    admission: batuta\n    api:\n" in run().stdout


def test_uninstall_prints_commands_and_spares_what_holds_data():
    said = run("--uninstall", "--set", "journal.type=persistentVolumeClaim", "--set", "replicas=1").stdout
    commands = [line for line in said.splitlines() if not line.startswith("#")]
    assert all(line.startswith("kubectl delete ") for line in commands)
    assert not [line for line in commands if "crd" in line or "delete namespace" in line or "volumeclaim" in line]
    assert commands[0].endswith("deployment batuta-operator")
    for spared in (
        "crd trialruns.batuta.dev",
        "crd unifiedjobs.batuta.dev",
        "namespace batuta-system",
        "persistentvolumeclaim batuta-journal",
    ):
        assert f"{spared}\n" in said


def test_an_unknown_policy_is_a_note_because_an_image_may_have_it():
    done = run("--set", "config.policy=afs")
    assert done.exit_code == 0
    assert "note: there is no policy afs here (did you mean afs-l?)" in done.stderr
    assert run().stderr == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--uninstall", "--apply"], "--uninstall only prints"),
        (["--uninstall", "--crds-only"], "do not go together"),
        (["--context", "prod"], "are for --apply"),
        (["--namespace", "Not A Name"], "--namespace 'Not A Name' is not a name"),
        (["--release", "r" * 54], "53 at most"),
        (["--set", "replicas=many"], "valid integer"),
    ],
)
def test_bad_input_is_refused(words, said):
    done = run(*words)
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)


def test_apply_without_kubectl_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = run("--apply")
    assert isinstance(done.exception, InputError)
    assert "batuta install | kubectl apply" in str(done.exception)


def test_bad_input_ends_with_two_and_no_traceback():
    command = [sys.executable, "-m", "batuta", "install", "--set", "replicas=-1", "--set", "x=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert sorted(line.split()[0] for line in done.stderr.splitlines()) == ["error:", "error:"]


def test_help_loads_nothing_heavy():
    program = (
        "import sys; from batuta.cli.main import run; sys.argv[1:] = ['install', '--help']\n"
        "try: run()\nexcept SystemExit: pass\n"
        "sys.exit(str({'numpy', 'yaml', 'msgspec', 'aiohttp'} & set(sys.modules) or '') or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
