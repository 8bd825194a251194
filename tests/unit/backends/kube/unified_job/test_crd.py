from pathlib import Path

import pytest

from batuta.backends.kube.crd import broken
from batuta.backends.kube.unified_job.crd import DEFINITION
from batuta.backends.kube.unified_job.model import RULES
from tests.support.unified_jobs import BROKEN, ON_CPU, unified_job

FILE = Path(__file__).parents[5] / "deploy/helm/batuta/crds/unifiedjobs.batuta.dev.yaml"


def test_the_chart_has_the_crd_of_this_model() -> None:
    assert FILE.read_text() == DEFINITION.to_yaml(), (
        f"the model has changed: python -m batuta.backends.kube.unified_job.crd > {FILE.name}"
    )


def test_kubectl_shows_the_columns_that_people_look_for() -> None:
    (version,) = DEFINITION.build()["spec"]["versions"]
    columns = version["additionalPrinterColumns"]
    assert [one["name"].upper() for one in columns if not one.get("priority")] == [
        *("QUEUE", "STATE", "GPUS", "MIN", "MAX", "PROGRESS", "ETA", "AGE")
    ]
    assert [one["name"].upper() for one in columns if one.get("priority")] == [
        *("NODES", "PRIORITY", "RESTARTS", "REASON")
    ]


def test_every_column_shows_a_field_that_there_is() -> None:
    (version,) = DEFINITION.build()["spec"]["versions"]
    root = version["schema"]["openAPIV3Schema"]
    for column in version["additionalPrinterColumns"]:
        place = root
        for key in column["jsonPath"].strip(".").split("."):
            if key == "metadata":
                break
            place = place["properties"][key]


def test_every_field_below_spec_says_what_it_is_for() -> None:
    (version,) = DEFINITION.build()["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]

    def silent(schema: dict, path: str) -> list[str]:
        own = [] if schema.get("description") else [path]
        below = (silent(one, f"{path}.{key}") for key, one in schema.get("properties", {}).items())
        return own + [one for found in below for one in found]

    unknown = ("template.metadata.", "template.spec.")
    assert [path for path in silent(spec, "spec") if not any(part in path for part in unknown)] == []


def test_a_sound_job_breaks_no_rule() -> None:
    assert broken(RULES, unified_job()) == []
    assert broken(RULES, unified_job(replicas=ON_CPU, topology={"level": "rack"})) == []


@pytest.mark.parametrize(("changes", "said"), BROKEN)
def test_a_broken_rule_is_told_with_its_field(changes: dict, said: str) -> None:
    (found,) = broken(RULES, unified_job(**changes))
    assert found.startswith(said)


def test_a_job_that_waits_has_the_target_zero() -> None:
    assert broken(RULES, unified_job(replicas={"minReplicas": 2, "sizes": [2, 8], "targetReplicas": 0})) == []


def test_a_type_of_somebody_elses_has_a_domain() -> None:
    assert broken(RULES, unified_job(job_type="example.com/Ray")) == []


def test_only_rules_about_a_change_are_left_to_the_api_server() -> None:
    assert all((rule.holds is None) == ("oldSelf" in rule.cel) for rule in RULES)
