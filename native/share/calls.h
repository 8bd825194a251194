/* The functions of the driver and of NVML that this library stands before or calls, as their callers declare them. */
#ifndef BATUTA_SHARE_CALLS_H
#define BATUTA_SHARE_CALLS_H

#include "batuta/cuda_names.h"
#include "batuta/nvml_names.h"

/* What others find: everything else in this library is hidden. */
#define HOOKED __attribute__((visibility("default")))

/* A function, and the one for callers whose default stream is one for each thread. */
#define WITH_PTSZ(name, ...) HOOKED CUresult name(__VA_ARGS__), name##_ptsz(__VA_ARGS__)

HOOKED CUresult cuMemAlloc(CUdeviceptr_v1 *, unsigned int);
HOOKED CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
HOOKED CUresult cuMemAllocPitch(CUdeviceptr_v1 *, unsigned int *, unsigned int, unsigned int, unsigned int);
HOOKED CUresult cuMemAllocPitch_v2(CUdeviceptr *, size_t *, size_t, size_t, unsigned int);
HOOKED CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned int);
WITH_PTSZ(cuMemAllocAsync, CUdeviceptr *, size_t, CUstream);
WITH_PTSZ(cuMemAllocFromPoolAsync, CUdeviceptr *, size_t, CUmemoryPool, CUstream);
HOOKED CUresult cuMemCreate(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
HOOKED CUresult cuArrayCreate(CUarray *, const CUDA_ARRAY_DESCRIPTOR_v1 *);
HOOKED CUresult cuArrayCreate_v2(CUarray *, const CUDA_ARRAY_DESCRIPTOR *);
HOOKED CUresult cuArray3DCreate(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR_v1 *);
HOOKED CUresult cuArray3DCreate_v2(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *);
HOOKED CUresult cuMipmappedArrayCreate(CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned int);
HOOKED CUresult cuGraphAddMemAllocNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
                                       CUDA_MEM_ALLOC_NODE_PARAMS *);
HOOKED CUresult cuGraphAddNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraphNodeParams *);
HOOKED CUresult cuGraphAddNode_v2(CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t,
                                  CUgraphNodeParams *);
HOOKED CUresult cuGraphAddNode_v3(CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t,
                                  CUgraphNodeParams *);
HOOKED CUresult cuCtxSetLimit(int, size_t);

HOOKED CUresult cuMemFree(CUdeviceptr_v1);
HOOKED CUresult cuMemFree_v2(CUdeviceptr);
WITH_PTSZ(cuMemFreeAsync, CUdeviceptr, CUstream);
HOOKED CUresult cuArrayDestroy(CUarray);
HOOKED CUresult cuMipmappedArrayDestroy(CUmipmappedArray);
HOOKED CUresult cuMemRelease(CUmemGenericAllocationHandle);
HOOKED CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
HOOKED CUresult cuMemUnmap(CUdeviceptr, size_t);
HOOKED CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *, void *);
HOOKED CUresult cuMemExportToShareableHandle(void *, CUmemGenericAllocationHandle, int, unsigned long long);
HOOKED CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *, void *, int);
HOOKED CUresult cuMemPoolCreate(CUmemoryPool *, const CUmemPoolProps *);
HOOKED CUresult cuMemPoolDestroy(CUmemoryPool);
HOOKED CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *, CUdevice);
HOOKED CUresult cuDeviceGetMemPool(CUmemoryPool *, CUdevice);
HOOKED CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
HOOKED CUresult cuDevicePrimaryCtxRelease(CUdevice);
HOOKED CUresult cuDevicePrimaryCtxRelease_v2(CUdevice);
HOOKED CUresult cuDevicePrimaryCtxReset(CUdevice);
HOOKED CUresult cuDevicePrimaryCtxReset_v2(CUdevice);
HOOKED CUresult cuCtxDestroy(CUcontext);
HOOKED CUresult cuCtxDestroy_v2(CUcontext);

HOOKED CUresult cuMemGetInfo(unsigned int *, unsigned int *);
HOOKED CUresult cuMemGetInfo_v2(size_t *, size_t *);
HOOKED CUresult cuDeviceTotalMem(unsigned int *, CUdevice);
HOOKED CUresult cuDeviceTotalMem_v2(size_t *, CUdevice);
HOOKED nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t, nvmlMemory_t *);
HOOKED nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t, nvmlMemory_v2_t *);

WITH_PTSZ(cuLaunchKernel, CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
          unsigned int, unsigned int, CUstream, void **, void **);
WITH_PTSZ(cuLaunchKernelEx, const CUlaunchConfig *, CUfunction, void **, void **);
WITH_PTSZ(cuLaunchCooperativeKernel, CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
          unsigned int, unsigned int, CUstream, void **);
HOOKED CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *, unsigned int, unsigned int);
HOOKED CUresult cuLaunch(CUfunction);
HOOKED CUresult cuLaunchGrid(CUfunction, int, int);
HOOKED CUresult cuLaunchGridAsync(CUfunction, int, int, CUstream);
WITH_PTSZ(cuGraphLaunch, CUgraphExec, CUstream);
HOOKED CUresult cuStreamBeginCapture(CUstream);
WITH_PTSZ(cuStreamBeginCapture_v2, CUstream, int);
WITH_PTSZ(cuStreamBeginCaptureToGraph, CUstream, CUgraph, const CUgraphNode *, const void *, size_t, int);
WITH_PTSZ(cuStreamEndCapture, CUstream, CUgraph *);

HOOKED CUresult cuGetProcAddress(const char *, void **, int, uint64_t);
HOOKED CUresult cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);

/* Only called. */
CUresult cuCtxGetCurrent(CUcontext *);
CUresult cuCtxGetDevice(CUdevice *);
CUresult cuCtxPushCurrent_v2(CUcontext);
CUresult cuCtxPopCurrent_v2(CUcontext *);
CUresult cuDeviceGetUuid(CUuuid *, CUdevice);
CUresult cuDeviceGetUuid_v2(CUuuid *, CUdevice);
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned int *, int *);
CUresult cuStreamGetCtx(CUstream, CUcontext *);
CUresult cuStreamIsCapturing(CUstream, int *);
CUresult cuEventCreate(CUevent *, unsigned int);
CUresult cuEventDestroy_v2(CUevent);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuDeviceGetAttribute(int *, int, CUdevice);
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *, CUmemGenericAllocationHandle);
CUresult cuEventQuery(CUevent);
CUresult cuEventElapsedTime(float *, CUevent, CUevent);
nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t, char *, unsigned int);
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t, nvmlUtilization_t *);
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t, nvmlProcessUtilizationSample_t *, unsigned int *,
                                             unsigned long long);

#endif
