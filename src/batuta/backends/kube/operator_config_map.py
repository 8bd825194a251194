"""The ConfigMap of an operator: which keys take effect at run time, who changed it, and how a policy is set in it.

It is the only place where settings are kept: what is changed at run time is changed here, so that a restart keeps it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import msgspec

from batuta.backends.kube import names, objects
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import Conflict
from batuta.backends.kube.client.kinds import ConfigMap, Kind
from batuta.backends.kube.operator_config import CONFIG_FILE, config_from
from batuta.backends.kube.settings import Settings, YamlSource
from batuta.spec.problem import InputError

AT_RUN_TIME: Final = frozenset(
    (
        *("policy", "placement", "queues", "fairSharing", "gangTimeoutSeconds", "restartBackoffSeconds"),
        *("retention", "api.metricsPerJob"),
    )
)
"""Keys that the leader takes up while it runs; all others take effect at the next start. The chart starts the
operator anew for those alone."""
CHANGED_BY: Final = f"{names.GROUP}/changed-by"
"""The annotation with the user for whom the operator itself changed the ConfigMap last."""
HELM: Final = "helm upgrade sets it back to config.policy of its values"
_LONGEST_NAME: Final = 253
_ATTEMPTS: Final = 5
SettingsT = TypeVar("SettingsT", bound=Settings)


class ManagedFields(msgspec.Struct, rename="camel", kw_only=True):
    """Which fields of an object a field manager set last, and when."""

    manager: str = ""
    time: str = ""
    fields: dict[str, Any] = msgspec.field(default_factory=dict, name="fieldsV1")


class OwnedMeta(objects.Meta):
    """Metadata with the field managers."""

    managed_fields: list[ManagedFields] = msgspec.field(default_factory=list)


class OperatorConfigMap(ConfigMap, kw_only=True):
    """A ConfigMap with its field managers."""

    metadata: OwnedMeta = msgspec.field(default_factory=OwnedMeta)


OPERATOR_CONFIG: Final = Kind("", "v1", "configmaps", "ConfigMap", OperatorConfigMap)


def source_of(config_map: OperatorConfigMap) -> YamlSource:
    """The file in the ConfigMap, or an InputError."""
    place = f"{config_map.metadata.name}/{CONFIG_FILE}"
    if CONFIG_FILE not in config_map.data:
        raise InputError.of(f"the ConfigMap has no key {CONFIG_FILE}", file=config_map.metadata.name)
    return YamlSource.parse(place, config_map.data[CONFIG_FILE])


def author_of(config_map: OperatorConfigMap) -> str:
    """Who set the file last: `cluster:` and the field manager, or the user for whom the operator did.

    Of those that own the file's text, the last one: others may have changed labels since.
    """
    meta = config_map.metadata
    owners = [one for one in meta.managed_fields if f"f:{CONFIG_FILE}" in one.fields.get("f:data", {})]
    if not owners:
        return "cluster"
    manager = max(owners, key=lambda one: one.time).manager
    user = meta.annotations.get(CHANGED_BY, "")
    return (user if manager == names.FIELD_MANAGER and user else f"cluster:{manager}")[:_LONGEST_NAME]


def changed_keys(before: Settings, after: Settings, above: str = "") -> Iterator[str]:
    """The keys that say something else, as `health.burnIn.image`; of those of AT_RUN_TIME not what is below them."""
    for name, field in type(before).model_fields.items():
        old, new, key = getattr(before, name), getattr(after, name), f"{above}{field.alias}"
        if old == new:
            continue
        if isinstance(old, Settings) and key not in AT_RUN_TIME:
            yield from changed_keys(old, new, f"{key}.")
        else:
            yield key


def at_run_time(running: SettingsT, wanted: SettingsT, above: str = "") -> SettingsT:
    """What runs, with the keys of AT_RUN_TIME as wanted."""
    changes: dict[str, Any] = {}
    for name, field in type(running).model_fields.items():
        old, new, key = getattr(running, name), getattr(wanted, name), f"{above}{field.alias}"
        if key in AT_RUN_TIME:
            changes[name] = new
        elif isinstance(old, Settings):
            changes[name] = at_run_time(old, new, f"{key}.")
    return running.model_copy(update=changes)


def with_policy(config_map: OperatorConfigMap, policy: str) -> str:
    """The text of the file with another policy; its comments stay. An InputError where that cannot be written."""
    source, text = source_of(config_map), config_map.data[CONFIG_FILE]
    node = source.node(["policy"])
    if node is None:
        text = f"policy: {json.dumps(policy)}\n{text}"
    else:
        text = f"{text[: node.start_mark.index]}{json.dumps(policy)}{text[node.end_mark.index :]}"
    try:
        found = config_from(YamlSource.parse(source.file, text))
    except InputError:
        found = None
    if found is None or found != config_from(source).model_copy(update={"policy": policy}):
        name, where = config_map.metadata.name, config_map.metadata.namespace
        fix = f"kubectl -n {where} edit configmap {name}"
        raise InputError.of(f"the policy cannot be replaced in {source.file}", fix=fix)
    return text


async def write_policy(api: Api, namespace: str, name: str, policy: str, user: str = "") -> bool:
    """Sets the policy in the ConfigMap, for a user where that is not the client's own; false where it stands there."""
    for attempt in range(_ATTEMPTS):
        found = await api.get(OPERATOR_CONFIG, name, namespace)
        if config_from(source_of(found)).policy == policy:
            return False
        metadata: dict[str, Any] = {"resourceVersion": found.metadata.resource_version}
        if user:
            metadata["annotations"] = {CHANGED_BY: user}
        body = {"metadata": metadata, "data": {CONFIG_FILE: with_policy(found, policy)}}
        try:
            await api.patch(OPERATOR_CONFIG, name, body, namespace)
        except Conflict:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            break
    return True
