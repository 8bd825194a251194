"""What the verbs for Kubernetes need, with a clear word where the extra packages are missing."""

from __future__ import annotations

import gc
import importlib.util
import logging
import sys
from pathlib import Path

from batuta.spec.problem import InputError

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


def operate(
    config: Path | None,
    kubeconfig: Path | None,
    context: str | None,
    namespace: str,
    identity: str,
    state_dir: Path | None,
    port: int | None,
    elect: bool,
) -> int:
    """Runs an operator; returns its exit code."""
    check_extra()
    # Thousands of objects come at once, and stay: there is no garbage to be looked for among them.
    gc.set_threshold(*_COLLECT_AFTER)
    from batuta.backends.kube.client.errors import AccessError
    from batuta.backends.kube.operator_config import OperatorConfig, read_operator_config
    from batuta.bootstrap.kube_operator import OperatorOptions, run_operator
    from batuta.bootstrap.operator_leader import binder_profile

    found = OperatorConfig() if config is None else read_operator_config(config)
    binder_profile(found)
    if port is not None:
        found = found.model_copy(update={"api": found.api.model_copy(update={"port": port})})
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    try:
        return run_operator(
            OperatorOptions(found, kubeconfig, context, namespace, identity, elect, state_dir)
        )
    except AccessError as error:
        raise InputError.of(str(error)) from None
