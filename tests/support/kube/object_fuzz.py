"""Objects of every kind that the operator watches, with fields replaced by values that no schema would let in.

The fields come from the declarations of the kinds and from one sound object of each, so a field that is added to either
is tried without a change here. The same seed gives the same objects.
"""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from msgspec import inspect

from batuta.backends.kube import names
from batuta.backends.kube.client import kinds
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.crd import Resource
from batuta.backends.kube.kueue import kinds as kueue
from batuta.backends.kube.operator.gangs import JOB_SET_NAME
from batuta.backends.kube.operator.informers import ALWAYS, IF_SERVED, SETTINGS, WORKLOAD_GROUP
from batuta.backends.kube.operator_config import CONFIG_FILE
from batuta.backends.kube.operator_config_map import OPERATOR_CONFIG
from batuta.backends.kube.trial.model import TRIAL_RUN
from batuta.backends.kube.unified_job.model import UNIFIED_JOB
from tests.support.kube.nodes import node
from tests.support.kube.pods import make_pod
from tests.support.kube.unified import manifest

Json = dict[str, Any]
FieldPath = tuple[str | int, ...]
NAMESPACE = "fuzz"
OTHER = "the object of the same number"
WATCHED: tuple[Kind[Any], ...] = (*ALWAYS, *IF_SERVED, *SETTINGS)
KEYS = sorted({*(text for text in vars(names).values() if isinstance(text, str) and "/" in text), names.POD_GROUP})
"""All labels, annotations and resources that Batuta has a name for."""
_DEEP = "[" * 5_000 + "]" * 5_000
TEXTS = (
    "",
    " ",
    "0",
    "-1",
    "9" * 4_301,
    "0" * 4_301 + "1",
    "1e999",
    "1e-999",
    "-1e99",
    "NaN",
    "Infinity",
    "9223372036854775808",
    "1.5",
    "500m",
    "8Ei",
    "0x10",
    "٣",  # a digit to Python, and none to Kubernetes
    "²",  # another one, which int() refuses
    "1_000",
    "0,1,2,3,4,5,6,7",
    ",".join(["7"] * 50_000),
    "true",
    "null",
    "{",
    "[]",
    "[1]",
    '{"0":1}',
    '{"0":{"state":"ill"}}',
    '[{"index":99999999999999999999}]',
    '[{"index":0,"memory":9223372036854775807,"compute":-9223372036854775808}]',
    '{"time":1e308,"gpus":[{"index":-1,"utilisation":1e308}]}',
    '{"time":1e9,"jobs":[{"job":{"name":"a","slowdown":1e308},"pods":{"":{"gpus":[0]},"a":{"memoryMib":-1}}}]}',
    '[{"n":1,"time":-1e308,"code":9223372036854775807,"gpu":-5}]',
    _DEEP,
    '{"a":' * 3_000 + "1" + "}" * 3_000,
    "9999-12-31T23:59:59Z",
    "0001-01-01T00:00:00+23:59",
    "2026-01-01T00:00:00Z",
    "node-0",
    "fuzz-0",
    "\u0000",
    "x" * 70_000,
)
NUMBERS = (0, -1, 1, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, -(2**63), 2**63, 2**64, 10**30, 1.5, 1e308, -0.0)
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [None], [[]], {"": None}, [1, "a", {}], {"a": {"b": [{}]}})


_POOLS: dict[type[inspect.Type], tuple[Any, ...]] = {
    inspect.StrType: TEXTS,
    inspect.IntType: NUMBERS,
    inspect.FloatType: NUMBERS,
    inspect.BoolType: (True, False, None),
}


def sound_objects() -> dict[Kind[Any], list[Json]]:
    """One or more sound objects of each watched kind, without a name."""
    bound = make_pod("", gpus=1, annotations={names.GPUS: "0", names.EXPECTED_UTILISATION: "0.5"})
    bound["spec"]["nodeName"] = "fuzz-node"
    bound["status"] = {
        "phase": "Running",
        "startTime": "2026-01-01T00:00:00Z",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "main", "ready": True, "state": {"running": {}}}],
    }
    share = make_pod("", gpus=0, annotations={names.SHARE_LIMITS: "soft"})
    share["spec"]["containers"][0]["resources"] = {"requests": {names.SHARE_MEMORY: "4", names.SHARE_COMPUTE: "20"}}
    group: Json = {"labels": {names.GANG_NAME: "g"}, "annotations": {names.GANG_SIZE: "1"}}
    gangs = [
        make_pod("", labels={JOB_SET_NAME: OTHER}),
        make_pod("", labels={names.POD_GROUP: OTHER}),
        make_pod("", ownerReferences=[{"kind": "Job", "name": OTHER, "uid": "job", "controller": True}]),
        make_pod("", labels={names.JOB_NAME: OTHER, names.START: "0", names.REPLICA_INDEX: "0"}),
        make_pod("") | {"spec": make_pod("")["spec"] | {"schedulingGroup": {"podGroupName": OTHER}}},
    ]
    child = {"metadata": {"labels": {names.JOB_NAME: OTHER, names.START: "0"}}}
    pod_set = {"template": {"spec": {"parallelism": 1, "completions": 1, "template": {"spec": {"containers": []}}}}}
    done = {"conditions": [{"type": "Complete", "status": "False"}], "succeeded": 0, "active": 1}
    quota = {"nominalQuota": "8", "borrowingLimit": "4", "lendingLimit": "2", "name": "nvidia.com/gpu"}
    flavors = [{"name": OTHER, "resources": [quota]}]
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}]
    preemption: Json = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}
    preemption |= {"borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 3}}
    queue = {"cohortName": OTHER, "resourceGroups": groups, "preemption": preemption, "queueingStrategy": "StrictFIFO"}
    queue |= {"namespaceSelector": {"matchLabels": {"a": "b"}}, "fairSharing": {"weight": "1"}, "stopPolicy": "None"}
    taint = {"key": "a", "value": "b", "effect": "NoSchedule"}
    zone = {"name": "node-0", "type": "Node", "resources": [{"name": "nvidia.com/gpu", "capacity": "8"}]}
    return {
        kinds.POD: [make_pod(""), make_pod("", **group), share, bound, *gangs],
        kinds.NODE: [node("")],
        kinds.NAMESPACE: [{"spec": {}, "status": {"phase": "Active"}}],
        kinds.PRIORITY_CLASS: [{"value": 5}],
        kinds.JOB: [{"spec": {"parallelism": 1, "completions": 1}, "status": done, **own} for own in ({}, child)],
        kinds.JOB_SET: [{"spec": {"replicatedJobs": [{"name": "a", "replicas": 1, **pod_set}]}, "status": {}}],
        kinds.MPI_JOB: [{"spec": {"mpiReplicaSpecs": {"Worker": {"replicas": 1}}}, "status": done, **child}],
        kinds.POD_GROUP: [{"spec": {"minMember": 1}}],
        WORKLOAD_GROUP: [{"spec": {"schedulingPolicy": {"gang": {"minCount": 1}}}}],
        kinds.NODE_TOPOLOGY: [{"zones": [zone], "attributes": [{"name": "topologyManagerPolicy", "value": "none"}]}],
        UNIFIED_JOB: [
            manifest("", "Pods"),
            manifest("", "Pods", replicas=(1, 4), annotations={names.WANTED: "2", names.CHECKPOINT: "60"}),
            manifest("", "Job"),
            manifest("", "Pods", sharing={"gpuMemory": "8Gi", "gpuCompute": 20}),
        ],
        TRIAL_RUN: [{"spec": {"jobName": OTHER, "sizes": [1, 2]}, "status": {}}],
        kueue.QUEUE_FILES: [{"data": {"queues.yaml": "queues:\n- name: fuzz\n  quota: {A100: 4}\n"}}],
        OPERATOR_CONFIG: [{"data": {CONFIG_FILE: "policy: rent\nqueues: [{name: fuzz}]\n"}}],
        kueue.RESOURCE_FLAVOR: [{"spec": {"nodeLabels": {"a": "b"}, "nodeTaints": [taint], "tolerations": [taint]}}],
        kueue.COHORT: [{"spec": {"parentName": "root", "resourceGroups": groups, "fairSharing": {"weight": "1"}}}],
        kueue.CLUSTER_QUEUE: [{"spec": queue}],
        kueue.LOCAL_QUEUE: [{"spec": {"clusterQueue": OTHER, "stopPolicy": "None"}}],
        kueue.WORKLOAD_PRIORITY_CLASS: [{"value": 5, "description": "x"}],
        kueue.WORKLOAD: [{"spec": {"podSets": [{"name": "main", "count": 1}], "queueName": "q", "active": True}}],
    }


def fields_of(kind: Kind[Any]) -> list[FieldPath]:
    """Every place of an object of this kind that Batuta declares a field for, or that a sound object has."""
    return list(_pools_of(kind))


def _pools_of(kind: Kind[Any]) -> dict[FieldPath, tuple[Any, ...]]:
    """The same with odd values of the type that belongs there: a decoder lets them pass."""
    found = dict(_declared(inspect.type_info(kind.type)))
    if issubclass(kind.type, Resource):
        for name, part in (("spec", kind.type.spec_type), ("status", kind.type.status_type)):
            found |= {(name, *path): pool for path, pool in _declared(inspect.type_info(part))}
    for sound in sound_objects()[kind]:
        found = dict(_present(sound)) | found
    return {path: pool for path, pool in found.items() if path and path[-1] not in ("apiVersion", "kind")}


def _declared(info: inspect.Type, depth: int = 0) -> Iterator[tuple[FieldPath, tuple[Any, ...]]]:
    yield (), _POOLS.get(type(info), OTHERS)
    if depth > 12:
        return
    match info:
        case inspect.StructType(fields=fields):
            for field in fields:
                for rest, pool in _declared(field.type, depth + 1):
                    yield (field.encode_name, *rest), pool
        case inspect.UnionType(types=types):
            for one in types:
                yield from _declared(one, depth)
        case inspect.ListType(item_type=item):
            for rest, pool in _declared(item, depth + 1):
                yield (0, *rest), pool
        case inspect.DictType(value_type=inspect.StrType()):
            for key in KEYS:
                yield (key,), TEXTS
        case inspect.Metadata(type=inner):
            yield from _declared(inner, depth)


def _present(value: Any) -> Iterator[tuple[FieldPath, tuple[Any, ...]]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (key,), TEXTS if isinstance(one, str) else NUMBERS if isinstance(one, int) else OTHERS
        for rest, pool in _present(one):
            yield (key, *rest), pool


def fuzzed(kind: Kind[Any], numbers: range, seed: int = 0) -> Iterator[bytes]:
    """Objects with these numbers, as JSON: field after field, each with an odd value, and some with several."""
    pools, sound = _pools_of(kind), sound_objects()[kind]
    paths = list(pools)
    random.Random(seed).shuffle(paths)
    for number in numbers:
        chance = random.Random(f"{kind} {seed} {number}")
        body = copy.deepcopy(sound[number % len(sound)])
        _refer(body, number)
        body.setdefault("metadata", {})
        name = f"fuzz-{number}"
        body["metadata"] |= {"name": name, "uid": f"{kind}-{name}", "generation": 1}
        body["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
        if kind.namespaced:
            body["metadata"]["namespace"] = NAMESPACE
        for path in (paths[number % len(paths)], *chance.choices(paths, k=chance.choice((0, 0, 0, 1, 3)))):
            _put(body, path, _odd(chance, pools[path]))
        # Without these it is another object, or none: an informer knows it by them.
        if isinstance(body.get("metadata"), dict):
            body["metadata"] |= {"name": name, "namespace": NAMESPACE if kind.namespaced else ""}
        else:
            body["metadata"] = {"name": name, "namespace": NAMESPACE if kind.namespaced else ""}
        yield json.dumps(body).encode()


def _refer(value: Any, number: int) -> None:
    """Lets an object refer to those of other kinds with its number: gangs to their owners, children to their jobs."""
    for key, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if one == OTHER:
            value[key] = f"fuzz-{number}"
        else:
            _refer(one, number)


def _odd(chance: random.Random, pool: tuple[Any, ...]) -> Any:
    return copy.deepcopy(chance.choice(chance.choice((*[pool] * 9, TEXTS, NUMBERS, OTHERS))))


def _put(body: Any, path: FieldPath, value: Any) -> None:
    """Puts a value to a place; what is on the way there and is no object or list is replaced."""
    for step, key in enumerate(path):
        is_last = step == len(path) - 1
        if isinstance(key, int):
            while len(body) <= key:
                body.append({})
        fresh: Any = [] if not is_last and isinstance(path[step + 1], int) else {}
        if is_last:
            body[key] = value
        elif isinstance(key, int) or key in body:
            if not isinstance(body[key], type(fresh)):
                body[key] = fresh
        else:
            body[key] = fresh
        body = body[key]
