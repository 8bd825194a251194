"""Quota over HTTP: files are applied as a whole or not at all, objects are removed, all can be read back."""

from typing import Any

import yaml

from batuta.api import models
from batuta.client.client import Client
from tests.support.served_api import ServedApi, until

FLAVOR = "{apiVersion: kueue.x-k8s.io/v1beta2, kind: ResourceFlavor, metadata: {name: all}}\n"
QUEUE = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: team}
spec:
  namespaceSelector: {}
  resourceGroups:
    - coveredResources: [nvidia.com/gpu]
      flavors: [{name: all, resources: [{name: nvidia.com/gpu, nominalQuota: 2}]}]
"""
DOOR = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: ours, namespace: people}
spec: {clusterQueue: team}
"""
TASK = "run: sleep 1000\nresources: {accelerators: virtual:1, labels: {kueue.x-k8s.io/queue-name: ours}}\n"


def apply(api: ServedApi, *texts: str, **more: Any) -> Any:
    files = [{"name": f"{number}.yaml", "text": text} for number, text in enumerate(texts)]
    return api.ask("PATCH", "/quota", json={"files": files, **more})


def changes(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.text
    models.QuotaChanged.model_validate(answer.json())
    return [f"{one['kind']} {one['name']} {one['change']}" for one in answer.json()["objects"]]


def test_files_are_applied_together_and_say_what_became_of_each_object(api: ServedApi) -> None:
    first = apply(api, FLAVOR, f"{QUEUE}---{DOOR}")
    assert changes(first) == [
        "ResourceFlavor all created",
        "ClusterQueue team created",
        "LocalQueue ours created",
    ]
    second = apply(api, FLAVOR, QUEUE.replace("nominalQuota: 2", "nominalQuota: 3"))
    assert changes(second) == ["ResourceFlavor all unchanged", "ClusterQueue team changed"]
    job = api.submit(TASK)["id"]
    api.wait_for(job, "RUNNING")


def test_what_holds_can_be_read_back_and_applied_again(api: ServedApi) -> None:
    fair = "{apiVersion: config.kueue.x-k8s.io/v1beta2, kind: Configuration, fairSharing: {}}"
    assert changes(apply(api, FLAVOR, QUEUE, DOOR, fair))[-1] == "Configuration fairSharing changed"
    found = api.get("/quota")
    models.QuotaObjects.model_validate(found)
    kinds = [one["kind"] for one in found["objects"]]
    assert kinds == ["Configuration", "ResourceFlavor", "ClusterQueue", "LocalQueue"]
    again = apply(api, yaml.safe_dump_all(found["objects"]))
    assert {one.rpartition(" ")[2] for one in changes(again)} == {"unchanged"}


def test_one_mistake_anywhere_and_nothing_is_applied(api: ServedApi) -> None:
    refused = apply(api, FLAVOR, QUEUE.replace("nominalQuota", "nominlQuota"), "kind: [")
    assert refused.status_code == 422
    places = [(one["file"], one["line"]) for one in refused.json()["problems"]]
    assert places == [("1.yaml", 9), ("1.yaml", 9), ("2.yaml", 2)]
    assert api.get("/quota")["objects"] == []


def test_what_does_not_go_with_what_holds_already_is_refused_with_its_place(api: ServedApi) -> None:
    cohort = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: Cohort\nmetadata: {{name: {}}}\nspec: {{parentName: {}}}\n"
    changes(apply(api, cohort.format("a", "b")))
    refused = apply(api, FLAVOR, cohort.format("b", "a"))
    assert refused.status_code == 422
    (problem,) = refused.json()["problems"]
    assert (problem["file"], problem["line"]) == ("1.yaml", 1)
    assert "circle" in problem["message"]
    assert [one["kind"] for one in api.get("/quota")["objects"]] == ["Cohort"]


def test_a_dry_run_says_the_same_and_changes_nothing(api: ServedApi) -> None:
    assert changes(apply(api, FLAVOR, dry_run=True)) == ["ResourceFlavor all created"]
    assert api.get("/quota")["objects"] == []


def test_names_that_lead_nowhere_are_noted(api: ServedApi) -> None:
    notes = apply(api, DOOR).json()["notes"]
    assert notes == ["LocalQueue people/ours leads to ClusterQueue team, which is not there: its jobs wait"]


def test_a_queue_with_jobs_that_run_goes_with_the_last_of_them(api: ServedApi) -> None:
    changes(apply(api, FLAVOR, QUEUE, DOOR))
    job = api.submit(TASK)["id"]
    api.wait_for(job, "RUNNING")
    used = api.ask("DELETE", "/quota/ResourceFlavor/all")
    assert (used.status_code, "used by ClusterQueue team" in used.json()["detail"]) == (409, True)
    gone = api.ask("DELETE", "/quota/ClusterQueue/team")
    assert changes(gone) == ["ClusterQueue team removed"]
    assert gone.json()["notes"] == ["ClusterQueue team starts nothing more, and goes when its last job is done"]
    later = api.submit(TASK)["id"]
    assert until(lambda: api.job(later)["reason"])["code"] != "FITS"
    assert api.job(job)["state"] == "RUNNING"
    assert "ClusterQueue" not in [one["kind"] for one in api.get("/quota")["objects"]]


def test_what_is_not_there_cannot_be_removed(api: ServedApi) -> None:
    changes(apply(api, DOOR))
    assert api.ask("DELETE", "/quota/ClusterQueue/team").status_code == 404
    assert api.ask("DELETE", "/quota/LocalQueue/ours").status_code == 404, "it has a namespace"
    assert api.ask("DELETE", "/quota/Qeue/team").status_code == 422
    removed = api.ask("DELETE", "/quota/LocalQueue/ours", params={"namespace": "people"})
    assert changes(removed) == ["LocalQueue ours removed"]


def test_only_an_administrator_changes_quota(api: ServedApi) -> None:
    body = {"files": [{"text": FLAVOR}]}
    assert api.ask("PATCH", "/quota", "ben", json=body).status_code == 403
    assert api.ask("DELETE", "/quota/Cohort/a", "ben").status_code == 403
    assert api.ask("GET", "/quota", "ben").status_code == 200


def test_a_body_that_makes_no_sense(shared_api: ServedApi) -> None:
    bodies: tuple[Any, ...] = (
        {},
        {"files": []},
        {"files": [{}]},
        {"files": [{"text": 3}]},
        [],
        {"file": "x"},
    )
    for body in bodies:
        assert shared_api.ask("PATCH", "/quota", json=body).status_code == 422, body


def test_a_priority_class_is_looked_up_when_a_task_is_submitted(api: ServedApi) -> None:
    labelled = "run: x\nresources: {labels: {kueue.x-k8s.io/priority-class: high}}\n"
    kind = {"Content-Type": "application/yaml"}
    passed = api.ask("POST", "/jobs", content=labelled, headers=kind).json()
    assert (passed["job"]["priority"], passed["notes"][-1]) == (
        0,
        "no priority classes are set up: high is not used (batuta queues apply)",
    )
    high = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: WorkloadPriorityClass\nmetadata: {name: high}\nvalue: 5000"
    changes(apply(api, high))
    assert api.submit(labelled)["priority"] == 5000
    assert api.submit("run: x\nresources: {priority: high}\n")["priority"] == 5000
    refused = api.ask("POST", "/jobs", content="run: x\nresources: {priority: hihg}\n", headers=kind)
    assert refused.status_code == 422
    assert "did you mean high?" in refused.text


def test_the_python_client_does_the_same(api: ServedApi) -> None:
    token = api.live.headers("ana")["Authorization"].removeprefix("Bearer ")
    with Client(api.url, token) as client:
        changed = client.apply_quota([("a.yaml", FLAVOR)])
        assert [(one.kind, one.change) for one in changed.objects] == [("ResourceFlavor", "created")]
        assert [one["kind"] for one in client.quota_objects()] == ["ResourceFlavor"]
        gone = client.delete_quota_object("ResourceFlavor", "all")
        assert [one.change for one in gone.objects] == ["removed"]
