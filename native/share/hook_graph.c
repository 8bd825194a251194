/* Graphs that allocate: charged when the node is made, until the address is freed or the process ends. */
#define _GNU_SOURCE
#include "ledger.h"

static bool begin(struct claim_of_memory *claim, const CUDA_MEM_ALLOC_NODE_PARAMS *memory)
{
    claim->charged = false;
    bool on_device = memory != NULL && memory->poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    return !on_device || claim_begin(claim, memory->poolProps.location.id, NULL, memory->bytesize);
}

HOOKED CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t after_count,
                                       CUDA_MEM_ALLOC_NODE_PARAMS *memory)
{
    struct claim_of_memory claim;
    if (!begin(&claim, memory)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = REAL(cuGraphAddMemAllocNode)(node, graph, after, after_count, memory);
    return claim_end(&claim, result, KIND_LINEAR, claim.charged ? memory->dptr : 0);
}

/* A node of any kind; one that allocates says so in the same words. */
static CUDA_MEM_ALLOC_NODE_PARAMS *memory_of(CUgraphNodeParams *params)
{
    return params != NULL && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? &params->alloc : NULL;
}

HOOKED CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t after_count,
                               CUgraphNodeParams *params)
{
    struct claim_of_memory claim;
    if (!begin(&claim, memory_of(params))) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = REAL(cuGraphAddNode)(node, graph, after, after_count, params);
    return claim_end(&claim, result, KIND_LINEAR, claim.charged ? params->alloc.dptr : 0);
}

#define ADD_NODE(name)                                                                                                \
    HOOKED CUresult name(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges,               \
                         size_t after_count, CUgraphNodeParams *params)                                               \
    {                                                                                                                 \
        struct claim_of_memory claim;                                                                                 \
        if (!begin(&claim, memory_of(params))) {                                                                      \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                          \
        }                                                                                                             \
        CUresult result = REAL(name)(node, graph, after, edges, after_count, params);                                 \
        return claim_end(&claim, result, KIND_LINEAR, claim.charged ? params->alloc.dptr : 0);                        \
    }
ADD_NODE(cuGraphAddNode_v2)
ADD_NODE(cuGraphAddNode_v3)
