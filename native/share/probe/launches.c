/* Every launch entry point, by every way: whether the region counts it. The same lines as for allocations. */
#define _GNU_SOURCE
#include "probe.h"
#include "region.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TIMES = 3 };

static CUfunction kernel;
static CUgraphExec graph;

#define AS(symbol, given) ((__typeof__(&symbol))(given))
#define LAUNCH(name) static CUresult name(function call)

LAUNCH(plain)
{
    return AS(cuLaunchKernel, call)(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
}

LAUNCH(extended)
{
    CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, NULL, NULL, 0};
    return AS(cuLaunchKernelEx, call)(&config, kernel, NULL, NULL);
}

LAUNCH(cooperative)
{
    return AS(cuLaunchCooperativeKernel, call)(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL);
}

LAUNCH(graph_of_one)
{
    return AS(cuGraphLaunch, call)(graph, NULL);
}

static const struct {
    struct name name;
    CUresult (*launch)(function call);
} ENTRIES[] = {
    {{"cuLaunchKernel", "cuLaunchKernel", 12000, false}, plain},
    {{"cuLaunchKernel_ptsz", "cuLaunchKernel", 12000, true}, plain},
    {{"cuLaunchKernelEx", "cuLaunchKernelEx", 12000, false}, extended},
    {{"cuLaunchKernelEx_ptsz", "cuLaunchKernelEx", 12000, true}, extended},
    {{"cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel", 12000, false}, cooperative},
    {{"cuLaunchCooperativeKernel_ptsz", "cuLaunchCooperativeKernel", 12000, true}, cooperative},
    {{"cuGraphLaunch", "cuGraphLaunch", 12000, false}, graph_of_one},
    {{"cuGraphLaunch_ptsz", "cuGraphLaunch", 12000, true}, graph_of_one},
};

static void capture_graph(void)
{
    CUstream stream;
    CUgraph recorded;
    must("cuStreamCreate", DRIVER(cuStreamCreate)(&stream, 1));
    must("cuStreamBeginCapture", DRIVER(cuStreamBeginCapture_v2)(stream, 0));
    must("cuLaunchKernel", DRIVER(cuLaunchKernel)(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    must("cuStreamEndCapture", DRIVER(cuStreamEndCapture)(stream, &recorded));
    must("cuGraphInstantiateWithFlags", DRIVER(cuGraphInstantiateWithFlags)(&graph, recorded, 0));
}

static const char *check(size_t e, enum way way, const struct share_region *region, CUresult *result)
{
    function call = look_up(way, &ENTRIES[e].name);
    uint64_t before = __atomic_load_n(&region->devices[0].launches, __ATOMIC_RELAXED);
    if (call == NULL) {
        return "absent";
    }
    for (int t = 0; t < TIMES; t++) {
        *result = ENTRIES[e].launch(call);
        if (*result != CUDA_SUCCESS) {
            return *result == CUDA_ERROR_NOT_SUPPORTED ? "absent" : "fails";
        }
    }
    uint64_t counted = __atomic_load_n(&region->devices[0].launches, __ATOMIC_RELAXED) - before;
    return counted == TIMES ? "holds" : counted == 0 ? "escapes" : "is counted wrongly";
}

int probe_launches(const char *region_path)
{
    use_device(0);
    kernel = spin_kernel(5);
    capture_graph();
    int descriptor = open(region_path, O_RDONLY | O_CLOEXEC);
    const struct share_region *region =
        descriptor < 0 ? MAP_FAILED : mmap(NULL, sizeof *region, PROT_READ, MAP_SHARED, descriptor, 0);
    if (region == MAP_FAILED) {
        fprintf(stderr, "no launch was counted: there is no region at %s\n", region_path);
        return 1;
    }
    close(descriptor);
    bool all_hold = true;
    for (size_t e = 0; e < sizeof ENTRIES / sizeof *ENTRIES; e++) {
        for (int way = 0; way < WAYS; way++) {
            CUresult result = CUDA_SUCCESS;
            const char *verdict = check(e, (enum way)way, region, &result);
            printf("%s\t%s\t%s\t%d\n", ENTRIES[e].name.symbol, WAY_NAMES[way], verdict, result);
            all_hold = all_hold && (strcmp(verdict, "holds") == 0 || strcmp(verdict, "absent") == 0);
        }
    }
    must("cuCtxSynchronize", DRIVER(cuCtxSynchronize)());
    return all_hold ? 0 : 1;
}
