"""The environment in which a program takes the virtual GPUs for real ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from batuta.gpu.vgpu.build import build

VARIABLE = "BATUTA_VGPU"


def environment(
    path: Path, base: Mapping[str, str] | None = None, libraries: Path | None = None
) -> dict[str, str]:
    """`base`, by default this process's own, with our libraries found before all others.

    `libraries` is what `build` said: who asks often need not have the sources looked at each time.
    """
    variables = dict(os.environ if base is None else base)
    found = variables.get("LD_LIBRARY_PATH", "")
    variables["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(libraries or build()), found)))
    variables[VARIABLE] = str(path.resolve())
    return variables
