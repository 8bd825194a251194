"""Device time for the demo: a step is a row of kernels on a virtual GPU, where there is one.

Only CUDA's driver API is used, by ctypes, so that a worker starts in no time. Its kernels compute nothing and
take as long as their name says, which is what a virtual GPU makes of it. On a real GPU they would take no
time at all: there, and where there is none, a step is slept.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

_KERNEL = b"step_vgpu_1ms"
_KERNEL_S = 0.001
_IMAGE = b".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry " + _KERNEL + b"() { ret; }\n\0"
_HELD_BYTES = 256 << 20
"""What weights and activations would take."""


class Device:
    """The GPUs of this worker, all busy for as long as a step takes."""

    def __init__(self, cuda: Any, gpus: int) -> None:
        self._cuda = cuda
        self._kernels = [self._prepare(gpu) for gpu in range(gpus)]

    def spend(self, seconds: float) -> None:
        """Keeps all GPUs busy for so long; returns when they are done."""
        launches = round(seconds / _KERNEL_S)
        if launches <= 0:
            return
        for context, kernel in self._kernels:
            self._call("cuCtxSetCurrent", context)
            for _ in range(launches):
                self._call("cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None)
        for context, _ in self._kernels:
            self._call("cuCtxSetCurrent", context)
            self._call("cuCtxSynchronize")

    def _prepare(self, gpu: int) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        held = ctypes.c_uint64()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)
        self._call("cuCtxSetCurrent", context)
        # A share may be smaller than this: then it does without.
        self._cuda.cuMemAlloc_v2(ctypes.byref(held), ctypes.c_size_t(_HELD_BYTES))
        self._call("cuModuleLoadData", ctypes.byref(module), _IMAGE)
        self._call("cuModuleGetFunction", ctypes.byref(kernel), module, _KERNEL)
        return context, kernel

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code != 0:
            raise OSError(f"{name} answers with CUDA error {code}")


class Sleep:
    """No GPU: a step takes its time all the same."""

    def spend(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))


def find_device() -> Device | Sleep:
    """The virtual GPUs that this worker may use, if there are any."""
    if not os.environ.get("BATUTA_VGPU"):
        return Sleep()
    count = ctypes.c_int()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
            return Sleep()
        return Device(cuda, count.value)
    except OSError:
        return Sleep()
