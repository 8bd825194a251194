"""Reads and sets the policy in the ConfigMap of an operator, with the rights of the user."""

from __future__ import annotations

from batuta.apitypes import resources as a
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import Forbidden
from batuta.backends.kube.operator_config import CONFIG_FILE, config_from
from batuta.backends.kube.operator_config_map import HELM, OPERATOR_CONFIG, OperatorConfigMap, source_of, write_policy
from batuta.client.errors import ApiError, ClientError
from batuta.engine.profile import find_policy
from batuta.policies.registry import policy_summaries

_OURS = "app.kubernetes.io/part-of=batuta"
_USUAL_PLACE = ("batuta-system", "batuta-config")


async def read_policy(api: Api, namespace: str | None) -> a.PolicyAnswer:
    found = await _find(api, namespace)
    return a.PolicyAnswer(config_from(source_of(found)).policy, _policies())


async def set_policy(api: Api, namespace: str | None, name: str) -> a.PolicyAnswer:
    find_policy(name)
    meta = (await _find(api, namespace)).metadata
    place = f"ConfigMap {meta.namespace}/{meta.name}"
    try:
        await write_policy(api, meta.namespace, meta.name, name)
    except Forbidden as error:
        raise ApiError(403, "forbidden", f"you may not patch {place}, which this takes") from error
    note = f"it stands in {place}, and the operator takes it up in a moment; {HELM}"
    return a.PolicyAnswer(name, _policies(), note)


async def _find(api: Api, namespace: str | None) -> OperatorConfigMap:
    """The ConfigMap of the operator in a namespace, or of the only one that the user may see."""
    usual_namespace, usual_name = _USUAL_PLACE
    try:
        listed = (await api.list(OPERATOR_CONFIG, namespace or "", labels=_OURS)).items
    except Forbidden:  # its user may read one object by its name, perhaps
        place = f"{namespace or usual_namespace}/{usual_name}"
        try:
            listed = [await api.get(OPERATOR_CONFIG, usual_name, namespace or usual_namespace)]
        except Forbidden as error:
            raise ApiError(403, "forbidden", f"you may not get ConfigMap {place}, which this takes") from error
    found = [one for one in listed if CONFIG_FILE in one.data]
    if not found:
        where = f"namespace {namespace}" if namespace else "this cluster"
        raise ClientError(f"{where} has no ConfigMap of an operator: `batuta install --apply` makes it")
    if len(found) > 1:
        places = ", ".join(sorted(one.metadata.namespace for one in found))
        raise ClientError(f"there are operators in {places}: -n NAMESPACE says which one")
    return found[0]


def _policies() -> tuple[a.PolicySeen, ...]:
    return tuple(a.PolicySeen(name, summary) for name, summary in policy_summaries())
