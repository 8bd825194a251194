/*
 * Every allocation entry point, by every way. A line each: the entry, the way, and what came of it:
 *   holds        what fits was given, accounted and freed; what exceeds the limit was refused with OUT_OF_MEMORY
 *   absent       the driver has no such function, or does not support it
 *   escapes      more was given than the limit
 *   …            anything else is said
 */
#define _GNU_SOURCE
#include "probe.h"

#include <stdio.h>
#include <string.h>

enum { MIB = 1 << 20, FITTING_BYTES = 4 * MIB, ROW_BYTES = 256 << 10, ELEMENT_BYTES = 16, FLOAT = 0x20 };

struct held {
    CUdeviceptr address;
    CUdeviceptr_v1 low;
    CUmemGenericAllocationHandle handle;
    CUarray array;
    CUmipmappedArray mipmapped;
    CUgraph graph;
};

#define AS(symbol, given) ((__typeof__(&symbol))(given))
#define ALLOCATE(name) static CUresult name(function call, size_t bytes, struct held *held)

ALLOCATE(plain)
{
    return AS(cuMemAlloc_v2, call)(&held->address, bytes);
}

ALLOCATE(low)
{
    return AS(cuMemAlloc, call)(&held->low, (unsigned int)bytes);
}

ALLOCATE(managed)
{
    return AS(cuMemAllocManaged, call)(&held->address, bytes, 1);
}

ALLOCATE(pitch)
{
    size_t row;
    return AS(cuMemAllocPitch_v2, call)(&held->address, &row, ROW_BYTES, bytes / ROW_BYTES, 4);
}

ALLOCATE(low_pitch)
{
    unsigned int row;
    return AS(cuMemAllocPitch, call)(&held->low, &row, ROW_BYTES, (unsigned int)(bytes / ROW_BYTES), 4);
}

ALLOCATE(ordered)
{
    return AS(cuMemAllocAsync, call)(&held->address, bytes, NULL);
}

ALLOCATE(from_pool)
{
    CUmemoryPool pool;
    must("cuDeviceGetDefaultMemPool", DRIVER(cuDeviceGetDefaultMemPool)(&pool, 0));
    return AS(cuMemAllocFromPoolAsync, call)(&held->address, bytes, pool, NULL);
}

ALLOCATE(physical)
{
    CUmemAllocationProp where = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    return AS(cuMemCreate, call)(&held->handle, bytes, &where, 0);
}

ALLOCATE(array)
{
    CUDA_ARRAY_DESCRIPTOR shape = {ROW_BYTES / ELEMENT_BYTES, bytes / ROW_BYTES, FLOAT, 4};
    return AS(cuArrayCreate_v2, call)(&held->array, &shape);
}

ALLOCATE(low_array)
{
    CUDA_ARRAY_DESCRIPTOR_v1 shape = {ROW_BYTES / ELEMENT_BYTES, (unsigned int)(bytes / ROW_BYTES), FLOAT, 4};
    return AS(cuArrayCreate, call)(&held->array, &shape);
}

ALLOCATE(deep_array)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = {ROW_BYTES / ELEMENT_BYTES, bytes / ROW_BYTES, 0, FLOAT, 4, 0};
    return AS(cuArray3DCreate_v2, call)(&held->array, &shape);
}

ALLOCATE(low_deep_array)
{
    CUDA_ARRAY3D_DESCRIPTOR_v1 shape = {ROW_BYTES / ELEMENT_BYTES, (unsigned int)(bytes / ROW_BYTES), 0, FLOAT, 4, 0};
    return AS(cuArray3DCreate, call)(&held->array, &shape);
}

ALLOCATE(mipmapped)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = {ROW_BYTES / ELEMENT_BYTES, bytes / ROW_BYTES, 0, FLOAT, 4, 0};
    return AS(cuMipmappedArrayCreate, call)(&held->mipmapped, &shape, 1);
}

/* Memory that comes with a graph, on the device of the context. */
static CUDA_MEM_ALLOC_NODE_PARAMS in_graph(size_t bytes, struct held *held)
{
    must("cuGraphCreate", DRIVER(cuGraphCreate)(&held->graph, 0));
    CUmemPoolProps pool = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    return (CUDA_MEM_ALLOC_NODE_PARAMS){.poolProps = pool, .bytesize = bytes};
}

static CUresult in_graph_result(struct held *held, CUresult result, CUdeviceptr address)
{
    if (result != CUDA_SUCCESS) {
        DRIVER(cuGraphDestroy)(held->graph);
        held->graph = NULL;
        return result;
    }
    held->address = address;
    return result;
}

ALLOCATE(graph_memory)
{
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS memory = in_graph(bytes, held);
    CUresult result = AS(cuGraphAddMemAllocNode, call)(&node, held->graph, NULL, 0, &memory);
    return in_graph_result(held, result, memory.dptr);
}

ALLOCATE(graph_node)
{
    CUgraphNode node;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .alloc = in_graph(bytes, held)};
    CUresult result = AS(cuGraphAddNode, call)(&node, held->graph, NULL, 0, &params);
    return in_graph_result(held, result, params.alloc.dptr);
}

ALLOCATE(graph_node_with_edges)
{
    CUgraphNode node;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .alloc = in_graph(bytes, held)};
    CUresult result = AS(cuGraphAddNode_v2, call)(&node, held->graph, NULL, NULL, 0, &params);
    return in_graph_result(held, result, params.alloc.dptr);
}

/* Memory of a graph is there once it has run, and can be freed like any other from then on. */
static void run(CUgraph graph)
{
    CUgraphExec executable;
    must("cuGraphInstantiateWithFlags", DRIVER(cuGraphInstantiateWithFlags)(&executable, graph, 0));
    must("cuGraphLaunch", DRIVER(cuGraphLaunch)(executable, NULL));
    must("cuCtxSynchronize", DRIVER(cuCtxSynchronize)());
    DRIVER(cuGraphExecDestroy)(executable);
    DRIVER(cuGraphDestroy)(graph);
}

static CUresult release(const struct held *held)
{
    if (held->graph != NULL) {
        run(held->graph);
    }
    if (held->address != 0) {
        return DRIVER(cuMemFree_v2)(held->address);
    }
    if (held->low != 0) {
        return DRIVER(cuMemFree)(held->low);
    }
    if (held->handle != 0) {
        return DRIVER(cuMemRelease)(held->handle);
    }
    return held->array != NULL ? DRIVER(cuArrayDestroy)(held->array)
                               : DRIVER(cuMipmappedArrayDestroy)(held->mipmapped);
}

static const struct {
    struct name name;
    CUresult (*allocate)(function call, size_t bytes, struct held *held);
} ENTRIES[] = {
    {{"cuMemAlloc", "cuMemAlloc", 2000, false}, low},
    {{"cuMemAlloc_v2", "cuMemAlloc", 12000, false}, plain},
    {{"cuMemAllocManaged", "cuMemAllocManaged", 12000, false}, managed},
    {{"cuMemAllocPitch", "cuMemAllocPitch", 2000, false}, low_pitch},
    {{"cuMemAllocPitch_v2", "cuMemAllocPitch", 12000, false}, pitch},
    {{"cuMemAllocAsync", "cuMemAllocAsync", 12000, false}, ordered},
    {{"cuMemAllocAsync_ptsz", "cuMemAllocAsync", 12000, true}, ordered},
    {{"cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync", 12000, false}, from_pool},
    {{"cuMemAllocFromPoolAsync_ptsz", "cuMemAllocFromPoolAsync", 12000, true}, from_pool},
    {{"cuMemCreate", "cuMemCreate", 12000, false}, physical},
    {{"cuArrayCreate", "cuArrayCreate", 2000, false}, low_array},
    {{"cuArrayCreate_v2", "cuArrayCreate", 12000, false}, array},
    {{"cuArray3DCreate", "cuArray3DCreate", 2000, false}, low_deep_array},
    {{"cuArray3DCreate_v2", "cuArray3DCreate", 12000, false}, deep_array},
    {{"cuMipmappedArrayCreate", "cuMipmappedArrayCreate", 12000, false}, mipmapped},
    {{"cuGraphAddMemAllocNode", "cuGraphAddMemAllocNode", 12000, false}, graph_memory},
    {{"cuGraphAddNode", "cuGraphAddNode", 12020, false}, graph_node},
    {{"cuGraphAddNode_v2", "cuGraphAddNode", 12030, false}, graph_node_with_edges},
    {{"cuGraphAddNode_v3", "cuGraphAddNode", 13040, false}, graph_node_with_edges},
};

static const char *check(size_t e, enum way way, size_t limit_bytes, CUresult *result)
{
    struct held held = {0};
    function call = look_up(way, &ENTRIES[e].name);
    size_t before = free_bytes(NULL);
    if (call == NULL) {
        return "absent";
    }
    *result = ENTRIES[e].allocate(call, FITTING_BYTES, &held);
    if (*result == CUDA_ERROR_NOT_SUPPORTED || *result == CUDA_ERROR_NOT_FOUND) {
        return "absent";
    }
    if (*result != CUDA_SUCCESS) {
        return "refuses what fits";
    }
    size_t taken = before - free_bytes(NULL);
    *result = release(&held);
    if (*result != CUDA_SUCCESS) {
        return "cannot be freed";
    }
    memset(&held, 0, sizeof held);
    CUresult more = ENTRIES[e].allocate(call, limit_bytes + 2 * MIB, &held);
    if (more == CUDA_SUCCESS) {
        release(&held);
        return "escapes";
    }
    *result = more;
    if (more != CUDA_ERROR_OUT_OF_MEMORY) {
        return "refuses with a code of its own";
    }
    if (taken < FITTING_BYTES || taken > 2 * FITTING_BYTES) {
        return "is not accounted";
    }
    return free_bytes(NULL) == before ? "holds" : "leaks when freed";
}

int probe_entries(void)
{
    size_t limit_bytes;
    use_device(0);
    free_bytes(&limit_bytes);
    bool all_hold = true;
    for (size_t e = 0; e < sizeof ENTRIES / sizeof *ENTRIES; e++) {
        for (int way = 0; way < WAYS; way++) {
            CUresult result = CUDA_SUCCESS;
            const char *verdict = check(e, (enum way)way, limit_bytes, &result);
            printf("%s\t%s\t%s\t%d\n", ENTRIES[e].name.symbol, WAY_NAMES[way], verdict, result);
            all_hold = all_hold && (strcmp(verdict, "holds") == 0 || strcmp(verdict, "absent") == 0);
        }
    }
    return all_hold ? 0 : 1;
}
