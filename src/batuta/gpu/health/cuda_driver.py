"""As much of CUDA's driver API as a burn-in needs, by ctypes: nothing has to be there beside the driver."""

from __future__ import annotations

import ctypes
import uuid
from ctypes import byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any


class CudaError(Exception):
    """A call that failed, with the driver's own words."""


class Cuda:
    """The driver, initialised."""

    def __init__(self) -> None:
        try:
            self._cuda: Any = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(f"libcuda cannot be loaded: {error}") from None
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            text = c_char_p()
            self._cuda.cuGetErrorString(code, byref(text))
            words = text.value.decode(errors="replace") if text.value else "unknown error"
            raise CudaError(f"{name}: {words} (CUDA error {code})")

    def device(self, gpu_uuid: str) -> int:
        """The number by which CUDA knows a GPU."""
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        for number in range(count.value):
            found = (c_ubyte * 16)()
            self.call("cuDeviceGetUuid", found, number)
            if f"GPU-{uuid.UUID(bytes=bytes(found))}" == gpu_uuid.lower().replace("gpu-", "GPU-"):
                return number
        raise CudaError(f"CUDA does not know {gpu_uuid}, of {count.value} GPUs")

    def open(self, device: int) -> Context:
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        return Context(self, context)


class Context:
    """One GPU to work on."""

    def __init__(self, cuda: Cuda, handle: c_void_p) -> None:
        self._cuda, self._handle = cuda, handle

    def call(self, name: str, *arguments: object) -> None:
        self._cuda.call("cuCtxSetCurrent", self._handle)
        self._cuda.call(name, *arguments)

    def memory(self) -> tuple[int, int]:
        """Free and all bytes."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def allocate(self, size: int) -> int:
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        self.call("cuMemFree_v2", c_uint64(address))

    def fill(self, address: int, word: int, count: int) -> None:
        self.call("cuMemsetD32_v2", c_uint64(address), c_uint(word), c_size_t(count))

    def read(self, address: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", buffer, c_uint64(address), c_size_t(size))
        return buffer.raw

    def copy_from(self, other: Context, to: int, source: int, size: int) -> None:
        """From another GPU, by the shortest way that there is."""
        self.call("cuMemcpyPeer", c_uint64(to), self._handle, c_uint64(source), other._handle, c_size_t(size))
        self.call("cuCtxSynchronize")

    def kernel(self, image: bytes, name: bytes) -> c_void_p:
        module, kernel = c_void_p(), c_void_p()
        self.call("cuModuleLoadData", byref(module), image)
        self.call("cuModuleGetFunction", byref(kernel), module, name)
        return kernel

    def launch(
        self, kernel: c_void_p, blocks: int, threads: int, *arguments: ctypes._SimpleCData[Any]
    ) -> None:
        """Runs a kernel to its end."""
        places = (c_void_p * len(arguments))(*(ctypes.addressof(one) for one in arguments))
        self.call("cuLaunchKernel", kernel, blocks, 1, 1, threads, 1, 1, 0, None, places, None)
        self.call("cuCtxSynchronize")
