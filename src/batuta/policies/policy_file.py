"""A policy from a Python file, so that an idea can be tried without making a package of it."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from batuta.core.policy import Policy
from batuta.policies.registry import BrokenPolicyError


def load_policy_file(path: str, name: str = "") -> Policy:
    """The policy class of a file, with its default parameters; `name` chooses among several."""
    module = _load(path)
    own = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__ and hasattr(value, "allocate")
    }
    if name:
        if name not in own:
            raise BrokenPolicyError(f"{path} has no policy class {name} (it has: {', '.join(own) or 'none'})")
        chosen = own[name]
    elif len(own) == 1:
        chosen = next(iter(own.values()))
    else:
        found = ", ".join(own) or "none"
        raise BrokenPolicyError(f"{path} must have one class with allocate(view), found {found}")
    try:
        policy = chosen()
    except Exception as error:
        raise BrokenPolicyError(f"{path}: {chosen.__name__}() failed: {error}") from error
    if not isinstance(policy, Policy):
        raise BrokenPolicyError(f"{path}: {chosen.__name__} is no policy: it needs a name and allocate(view)")
    return policy


def _load(path: str) -> ModuleType:
    module_name = "batuta_policy_file_" + "".join(c if c.isalnum() else "_" for c in path)
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise BrokenPolicyError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickling look their module up by name.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError:
        raise BrokenPolicyError(f"{path} does not exist") from None
    except Exception as error:
        raise BrokenPolicyError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module
