"""Whatever is written as quota or as a case: quota comes of it, or problems; never anything else."""

import contextlib
import json

import yaml
from hypothesis import given
from hypothesis import strategies as st

from batuta.core.quota import Quota
from batuta.spec.kueue.change import dangling_references, merge
from batuta.spec.kueue.export import quota_objects
from batuta.spec.kueue.files import read_quota_objects, read_quota_texts
from batuta.spec.kueue.objects import KINDS
from batuta.spec.problem import InputError
from tests.support.quotas import parse_cases

KEYS = (
    *(
        "name",
        "namespace",
        "spec",
        "cohortName",
        "cohort",
        "parentName",
        "resourceGroups",
        "coveredResources",
    ),
    *("flavors", "resources", "nominalQuota", "borrowingLimit", "lendingLimit", "preemption", "stopPolicy"),
    *("withinClusterQueue", "reclaimWithinCohort", "borrowWithinCohort", "policy", "fairSharing", "weight"),
    *("namespaceSelector", "matchLabels", "matchExpressions", "key", "operator", "values", "clusterQueue"),
    *("nodeLabels", "nodeTaints", "tolerations", "effect", "value", "flavorFungibility", "whenCanBorrow"),
)
WORDS = (
    "a",
    "b",
    "x",
    "gpu",
    "1",
    "-1",
    "500m",
    "Any",
    "Never",
    "LowerPriority",
    "In",
    "Exists",
    "NoSchedule",
    "",
)
scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.sampled_from(WORDS) | st.text(max_size=3)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
objects = st.fixed_dictionaries(
    {
        "apiVersion": st.sampled_from(("kueue.x-k8s.io/v1beta1", "kueue.x-k8s.io/v1beta2", "v1")) | scalars,
        "kind": st.sampled_from((*KINDS, "List", "Configuration")) | scalars,
        "metadata": st.fixed_dictionaries({"name": st.sampled_from(WORDS)}) | values,
        "spec": values,
    },
    optional={"value": scalars, "items": values, "fairSharing": values},
)
actions = st.sampled_from(("submit", "finish", "delete", "patchWorkload", "update", "create", "deleteObject"))
asked = st.dictionaries(
    st.sampled_from(("name", "queue", "kind", "spec", "requests", "podSets", "count", "priority", "active")),
    values,
    max_size=4,
)


@given(st.lists(objects | values, max_size=3))
def test_any_objects(found):
    with contextlib.suppress(InputError):
        quota = merge(Quota(), read_quota_objects(found))
        dangling_references(quota)
        assert merge(Quota(), read_quota_objects(quota_objects(quota))) == quota


@given(st.lists(objects | values, max_size=3))
def test_any_objects_as_yaml(found):
    text = yaml.safe_dump_all(found, allow_unicode=True)
    with contextlib.suppress(InputError):
        merge(Quota(), read_quota_texts([("q.yaml", text)]))


@given(st.text(alphabet="ab:-{}[],&*<|>'\"!%#?\n\t \0\x85\ud800", max_size=40))
def test_any_text(text):
    with contextlib.suppress(InputError):
        read_quota_texts([("q.yaml", text)])
    with contextlib.suppress(InputError):
        parse_cases(text)


@given(st.lists(st.dictionaries(actions, asked | values, max_size=2), max_size=3), st.lists(objects, max_size=2))
def test_any_case(steps, found):
    case = {"objects": found, "steps": [{"do": do} for do in steps]}
    with contextlib.suppress(InputError):
        parse_cases(json.dumps(case))
