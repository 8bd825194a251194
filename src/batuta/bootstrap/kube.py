"""What the verbs for Kubernetes need, with a clear word where the extra packages are missing."""

from __future__ import annotations

import gc
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batuta.spec.problem import InputError
from batuta.telemetry.log_format import LogFormat

_NEEDED = ("aiohttp", "msgspec")
_COLLECT_AFTER = (20_000, 20, 50)


def check_extra() -> None:
    """Says how to get what Kubernetes needs, if it is not there."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError.of(
            f"Kubernetes needs {' and '.join(missing)}, which are not installed",
            fix="pip install 'batuta[kube]'",
        )


@dataclass(frozen=True, slots=True)
class OperatorWords:
    """What the command line says of an operator; None leaves it to the configuration."""

    config: Path | None
    kubeconfig: Path | None
    context: str | None
    namespace: str
    identity: str
    state_dir: Path | None
    port: int | None
    elect: bool
    otlp: str | None = None
    log_format: LogFormat | None = None

    @property
    def telemetry(self) -> dict[str, Any]:
        said = {"otlp_url": self.otlp, "log_format": self.log_format}
        return {key: value for key, value in said.items() if value is not None}


def operate(words: OperatorWords) -> int:
    """Runs an operator; returns its exit code."""
    check_extra()
    # Thousands of objects come at once, and stay: there is no garbage to be looked for among them.
    gc.set_threshold(*_COLLECT_AFTER)
    from batuta.backends.kube.client.errors import AccessError
    from batuta.backends.kube.operator_config import OperatorConfig, read_operator_config
    from batuta.bootstrap.kube_operator import OperatorOptions, run_operator
    from batuta.bootstrap.operator_leader import binder_profile
    from batuta.bootstrap.server_log import log_to_stderr
    from batuta.bootstrap.telemetry import check_otlp

    found = OperatorConfig() if words.config is None else read_operator_config(words.config)
    binder_profile(found)
    if words.port is not None:
        found = found.model_copy(update={"api": found.api.model_copy(update={"port": words.port})})
    found = found.model_copy(update={"telemetry": found.telemetry.model_copy(update=words.telemetry)})
    check_otlp(found.telemetry.otlp_url, "telemetry.otlpUrl" if words.otlp is None else "--otlp")
    log_to_stderr(found.telemetry.log_format)
    try:
        return run_operator(
            OperatorOptions(
                found,
                words.kubeconfig,
                words.context,
                words.namespace,
                words.identity,
                words.elect,
                words.state_dir,
            )
        )
    except AccessError as error:
        raise InputError.of(str(error)) from None
