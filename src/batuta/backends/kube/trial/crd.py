"""The CustomResourceDefinition of TrialRun, made of its model and its rules.

python -m batuta.backends.kube.trial.crd > deploy/helm/batuta/crds/trialruns.batuta.dev.yaml
"""

from __future__ import annotations

import sys
from typing import Final

from batuta.backends.kube import names
from batuta.backends.kube.crd import Column, Definition, Schema, put_rule, schema_of
from batuta.backends.kube.trial.model import RULES, TrialSpec, TrialStatus
from batuta.backends.kube.unified_job.model import RULES as JOB_RULES
from batuta.backends.kube.unified_job.model import Spec

_COLUMNS: Final = (
    Column("State", "string", ".status.state"),
    Column("Sizes", "string", ".status.progress"),
    Column("Chosen", "integer", ".status.chosenGpus"),
    Column("Job", "string", ".spec.jobName", is_wide=True),
    Column("Message", "string", ".status.message", is_wide=True),
    Column("Age", "date", ".metadata.creationTimestamp"),
)


def _spec() -> Schema:
    """With the schema of a UnifiedJob where one is written into it, and the rules that such a spec has."""
    found = schema_of(TrialSpec, defaults=True)
    template = found["properties"]["template"]
    said = template["properties"]["spec"]["description"]
    job: Schema = {"properties": {"spec": schema_of(Spec, defaults=True)}}
    for rule in JOB_RULES:
        if rule.at.startswith("spec") and rule.holds is not None:
            put_rule(job, rule)
    template["properties"]["spec"] = job["properties"]["spec"] | {"description": said}
    return found


DEFINITION: Final = Definition(
    kind=names.TRIAL_KIND,
    plural=names.TRIAL_PLURAL,
    short="tr",
    description="A job that runs for a short while at several sizes, to see what each is worth.",
    spec=_spec(),
    status=schema_of(TrialStatus, defaults=False),
    columns=_COLUMNS,
    rules=RULES,
    module="batuta.backends.kube.trial.crd",
)

if __name__ == "__main__":
    sys.stdout.write(DEFINITION.to_yaml())
