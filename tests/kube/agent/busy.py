"""A program in a container that keeps a GPU busy until it is ended. It needs nothing but a driver."""

import ctypes
import os
import signal

cuda = ctypes.CDLL(os.environ["CUDA_LIBRARY"])
NAME = b"step_vgpu_50ms"
IMAGE = b".version 8.0\n.target sm_75\n.visible .entry %s() { ret; }\0" % NAME
context, module, kernel, memory = (ctypes.c_void_p() for _ in range(4))
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
assert cuda.cuInit(0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(3 << 30)) == 0
assert cuda.cuModuleLoadData(ctypes.byref(module), IMAGE) == 0
assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, NAME) == 0
while True:
    assert cuda.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None) == 0
    assert cuda.cuCtxSynchronize() == 0
