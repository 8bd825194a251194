/* Graphs: so many kernels, so much device time. What depends on what does not matter on a device that does one thing
 * at a time. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>

struct CUgraph_st {
    uint64_t nodes;
    uint64_t length_ns;
};

struct CUgraphExec_st {
    uint64_t length_ns;
};

CUresult graph_record(struct CUgraph_st *graph, uint64_t length_ns)
{
    graph->nodes++;
    graph->length_ns += length_ns;
    return CUDA_SUCCESS;
}

API CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (graph == NULL || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *graph = calloc(1, sizeof **graph);
    return *graph == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

API CUresult cuGraphDestroy(CUgraph graph)
{
    CUresult result = driver_ready();
    if (result == CUDA_SUCCESS) {
        free(graph);
    }
    return result;
}

/* Nodes are handles without an object: the graph and their number in it. */
static CUresult add(CUgraphNode *node, CUgraph graph, uint64_t length_ns)
{
    if (node == NULL || graph == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&driver.lock);
    CUresult result = graph_record(graph, length_ns);
    *node = (CUgraphNode)((uintptr_t)graph + graph->nodes);
    pthread_mutex_unlock(&driver.lock);
    return result;
}

API CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t after_count,
                                     const CUDA_KERNEL_NODE_PARAMS *kernel)
{
    CUcontext context;
    (void)after;
    (void)after_count;
    CUresult result = driver_context(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUfunction function = kernel == NULL ? NULL : kernel->func != NULL ? kernel->func : (CUfunction)kernel->kern;
    if (function == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t threads = (uint64_t)kernel->gridDimX * kernel->gridDimY * kernel->gridDimZ * kernel->blockDimX *
                       kernel->blockDimY * kernel->blockDimZ;
    return add(node, graph, kernel_length_ns(function, context->device, threads));
}

/* The memory is there from the making of the node: a real device gives it when the graph runs. */
API CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t after_count,
                                    CUDA_MEM_ALLOC_NODE_PARAMS *memory)
{
    CUcontext context;
    (void)after;
    (void)after_count;
    CUresult result = driver_context(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (memory == NULL || graph == NULL || node == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (memory->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        memory->poolProps.location.id != context->ordinal) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    result = memory_allocate(context, &memory->dptr, memory->bytesize, MEMORY_DEVICE, NULL);
    return result == CUDA_SUCCESS ? add(node, graph, 0) : result;
}

API CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges,
                               size_t after_count, CUgraphNodeParams *params)
{
    (void)edges;
    if (params == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return cuGraphAddKernelNode_v2(node, graph, after, after_count, &params->kernel);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return cuGraphAddMemAllocNode(node, graph, after, after_count, &params->alloc);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}
ALIAS(cuGraphAddNode_v3, cuGraphAddNode_v2);

API CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t after_count,
                            CUgraphNodeParams *params)
{
    return cuGraphAddNode_v2(node, graph, after, NULL, after_count, params);
}

API CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t after_count)
{
    (void)after;
    (void)after_count;
    CUresult result = driver_ready();
    return result == CUDA_SUCCESS ? add(node, graph, 0) : result;
}

API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    for (size_t n = 0; nodes != NULL && n < *count; n++) {
        nodes[n] = n < graph->nodes ? (CUgraphNode)((uintptr_t)graph + n + 1) : NULL;
    }
    *count = graph->nodes;
    return CUDA_SUCCESS;
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (executable == NULL || graph == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *executable = calloc(1, sizeof **executable);
    if (*executable == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (*executable)->length_ns = graph->length_ns;
    return CUDA_SUCCESS;
}

API CUresult cuGraphInstantiate_v2(CUgraphExec *executable, CUgraph graph, CUgraphNode *failed, char *log, size_t size)
{
    if (failed != NULL) {
        *failed = NULL;
    }
    if (log != NULL && size > 0) {
        *log = '\0';
    }
    return cuGraphInstantiateWithFlags(executable, graph, 0);
}
ALIAS(cuGraphInstantiate, cuGraphInstantiate_v2);

API CUresult cuGraphInstantiateWithParams(CUgraphExec *executable, CUgraph graph, void *parameters)
{
    (void)parameters;
    return cuGraphInstantiateWithFlags(executable, graph, 0);
}
PTSZ(cuGraphInstantiateWithParams);

API CUresult cuGraphUpload(CUgraphExec executable, CUstream handle)
{
    struct CUstream_st *stream;
    (void)executable;
    return driver_stream(handle, &stream);
}
PTSZ(cuGraphUpload);

API CUresult cuGraphLaunch(CUgraphExec executable, CUstream handle)
{
    struct CUstream_st *stream;
    CUresult result = driver_stream(handle, &stream);
    return result == CUDA_SUCCESS ? stream_launch(stream, executable->length_ns) : result;
}
PTSZ(cuGraphLaunch);

API CUresult cuGraphExecDestroy(CUgraphExec executable)
{
    CUresult result = driver_ready();
    if (result == CUDA_SUCCESS) {
        free(executable);
    }
    return result;
}

API CUresult cuStreamBeginCapture_v2(CUstream handle, int mode)
{
    struct CUstream_st *stream;
    (void)mode;
    CUresult result = driver_stream(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (stream->capture != NULL || stream == &stream->context->default_stream) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return cuGraphCreate(&stream->capture, 0);
}
PTSZ(cuStreamBeginCapture_v2);

API CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
    struct CUstream_st *stream;
    CUresult result = driver_stream(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (stream->capture == NULL) {
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    *graph = stream->capture;
    stream->capture = NULL;
    return CUDA_SUCCESS;
}
PTSZ(cuStreamEndCapture);

API CUresult cuStreamIsCapturing(CUstream handle, int *status)
{
    struct CUstream_st *stream;
    CUresult result = driver_stream(handle, &stream);
    if (result == CUDA_SUCCESS) {
        *status = stream->capture == NULL ? CU_STREAM_CAPTURE_STATUS_NONE : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    }
    return result;
}
PTSZ(cuStreamIsCapturing);

API CUresult cuStreamGetCaptureInfo_v2(CUstream handle, int *status, uint64_t *id, CUgraph *graph,
                                       const CUgraphNode **after, size_t *after_count)
{
    struct CUstream_st *stream;
    CUresult result = driver_stream(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *status = stream->capture == NULL ? CU_STREAM_CAPTURE_STATUS_NONE : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (id != NULL) {
        *id = stream->id;
    }
    if (graph != NULL) {
        *graph = stream->capture;
    }
    if (after != NULL) {
        *after = NULL;
    }
    if (after_count != NULL) {
        *after_count = 0;
    }
    return CUDA_SUCCESS;
}
PTSZ(cuStreamGetCaptureInfo_v2);

API CUresult cuStreamGetCaptureInfo_v3(CUstream handle, int *status, uint64_t *id, CUgraph *graph,
                                       const CUgraphNode **after, const void **edges, size_t *after_count)
{
    if (edges != NULL) {
        *edges = NULL;
    }
    return cuStreamGetCaptureInfo_v2(handle, status, id, graph, after, after_count);
}
PTSZ(cuStreamGetCaptureInfo_v3);
