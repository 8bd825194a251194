/* Launches: each waits for its turn, is charged, and is measured now and then. */
#define _GNU_SOURCE
#include "credit.h"

struct turn {
    int place; /* NOT_GIVEN: not limited */
    int64_t cost_ns;
    CUstream stream;
    struct measure measure;
};

static int captures; /* atomic: streams that record instead of run */

/* With a default stream for each thread, 0 is another stream, which has a handle of its own. */
static CUstream handle_of(CUstream stream, bool per_thread)
{
    return per_thread && stream == NULL ? CU_STREAM_PER_THREAD : stream;
}

static bool is_recorded(CUstream stream)
{
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    return __atomic_load_n(&captures, __ATOMIC_RELAXED) > 0 &&
           (REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE);
}

static void count_launch(int place)
{
    struct share_device *device = &share.region->devices[place];
    int process = share_known_process();
    if (process < 0 && region_lock(share.region)) {
        process = share_process();
        region_unlock(share.region);
    }
    __atomic_fetch_add(&device->launches, 1, __ATOMIC_RELAXED);
    if (process >= 0) {
        __atomic_fetch_add(&share.region->processes[process].use[place].launches, 1, __ATOMIC_RELAXED);
    }
}

static void charge(struct turn *turn)
{
    struct share_device *device = &share.region->devices[turn->place];
    __atomic_fetch_add(&device->charged_ns, (uint64_t)turn->cost_ns, __ATOMIC_RELAXED);
    if ((uint64_t)turn->cost_ns > __atomic_load_n(&device->longest_ns, __ATOMIC_RELAXED)) {
        __atomic_store_n(&device->longest_ns, (uint64_t)turn->cost_ns, __ATOMIC_RELAXED);
    }
    credit_charge(turn->place, turn->cost_ns);
}

static void turn_begin(struct turn *turn, CUstream stream, const void *what, uint64_t threads)
{
    CUcontext context = NULL;
    CUdevice device;
    *turn = (struct turn){.place = NOT_GIVEN, .stream = stream, .measure = {-1}};
    if (share_mode() != MODE_ON || is_recorded(stream) || !share_stream_context(stream, &context) ||
        !share_context_device(context, &device)) {
        return;
    }
    int place = share_place(device);
    if (place == NOT_GIVEN) {
        return;
    }
    count_launch(place);
    if (!credit_is_limited(place)) {
        return;
    }
    uint64_t family = ((uint64_t)(uintptr_t)what << 8 ^ (uint64_t)place) | 1u;
    struct launch launch = {family ^ threads * UINT64_C(0x1fea35fafdaab19a), family};
    turn->place = place;
    bool paused = credit_wait(place);
    /* While anything is recorded, a query of an event could spoil it. */
    bool may_measure = __atomic_load_n(&captures, __ATOMIC_RELAXED) == 0;
    turn->cost_ns = cost_of(place, &launch, may_measure);
    charge(turn);
    utilisation_correct(place, share_now_ns());
    if (may_measure) {
        cost_measure_begin(&turn->measure, place, &launch, context, stream, paused);
    }
}

static CUresult turn_end(const struct turn *turn, CUresult result)
{
    cost_measure_end(&turn->measure, turn->stream, result == CUDA_SUCCESS);
    if (result != CUDA_SUCCESS && turn->place != NOT_GIVEN) {
        __atomic_fetch_sub(&share.region->devices[turn->place].charged_ns, (uint64_t)turn->cost_ns, __ATOMIC_RELAXED);
        credit_charge(turn->place, -turn->cost_ns);
    }
    return result;
}

#define LAUNCH_KERNEL(name, per_thread)                                                                               \
    HOOKED CUresult name(CUfunction kernel, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,            \
                         unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, \
                         CUstream stream, void **parameters, void **extra)                                            \
    {                                                                                                                 \
        struct turn turn;                                                                                             \
        turn_begin(&turn, handle_of(stream, per_thread), kernel,                                                      \
                   (uint64_t)grid_x * grid_y * grid_z * block_x * block_y * block_z);                                 \
        return turn_end(&turn, REAL(name)(kernel, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,    \
                                          stream, parameters, extra));                                                \
    }
LAUNCH_KERNEL(cuLaunchKernel, false)
LAUNCH_KERNEL(cuLaunchKernel_ptsz, true)

#define LAUNCH_COOPERATIVE(name, per_thread)                                                                          \
    HOOKED CUresult name(CUfunction kernel, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,            \
                         unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, \
                         CUstream stream, void **parameters)                                                          \
    {                                                                                                                 \
        struct turn turn;                                                                                             \
        turn_begin(&turn, handle_of(stream, per_thread), kernel,                                                      \
                   (uint64_t)grid_x * grid_y * grid_z * block_x * block_y * block_z);                                 \
        return turn_end(&turn, REAL(name)(kernel, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,    \
                                          stream, parameters));                                                       \
    }
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel, false)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, true)

static uint64_t threads_of(const CUlaunchConfig *config)
{
    return (uint64_t)config->gridDimX * config->gridDimY * config->gridDimZ * config->blockDimX * config->blockDimY *
           config->blockDimZ;
}

#define LAUNCH_EX(name, per_thread)                                                                                   \
    HOOKED CUresult name(const CUlaunchConfig *config, CUfunction kernel, void **parameters, void **extra)            \
    {                                                                                                                 \
        struct turn turn = {.place = NOT_GIVEN, .measure = {-1}};                                                     \
        if (config != NULL) {                                                                                         \
            turn_begin(&turn, handle_of(config->hStream, per_thread), kernel, threads_of(config));                    \
        }                                                                                                             \
        return turn_end(&turn, REAL(name)(config, kernel, parameters, extra));                                        \
    }
LAUNCH_EX(cuLaunchKernelEx, false)
LAUNCH_EX(cuLaunchKernelEx_ptsz, true)

#define LAUNCH_GRAPH(name, per_thread)                                                                                \
    HOOKED CUresult name(CUgraphExec graph, CUstream stream)                                                          \
    {                                                                                                                 \
        struct turn turn;                                                                                             \
        turn_begin(&turn, handle_of(stream, per_thread), graph, 0);                                                   \
        return turn_end(&turn, REAL(name)(graph, stream));                                                            \
    }
LAUNCH_GRAPH(cuGraphLaunch, false)
LAUNCH_GRAPH(cuGraphLaunch_ptsz, true)

/* One kernel on several devices at once: a turn on each; none is measured, the first launch of each alone would be. */
HOOKED CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned int count,
                                                     unsigned int flags)
{
    for (unsigned int l = 0; launches != NULL && l < count; l++) {
        struct turn turn;
        const CUDA_LAUNCH_PARAMS *one = &launches[l];
        turn_begin(&turn, one->hStream, one->function,
                   (uint64_t)one->gridDimX * one->gridDimY * one->gridDimZ * one->blockDimX * one->blockDimY *
                       one->blockDimZ);
        cost_measure_end(&turn.measure, one->hStream, false);
    }
    return REAL(cuLaunchCooperativeKernelMultiDevice)(launches, count, flags);
}

HOOKED CUresult cuLaunch(CUfunction kernel)
{
    struct turn turn;
    turn_begin(&turn, NULL, kernel, 1);
    return turn_end(&turn, REAL(cuLaunch)(kernel));
}

HOOKED CUresult cuLaunchGrid(CUfunction kernel, int width, int height)
{
    struct turn turn;
    turn_begin(&turn, NULL, kernel, (uint64_t)width * (uint64_t)height);
    return turn_end(&turn, REAL(cuLaunchGrid)(kernel, width, height));
}

HOOKED CUresult cuLaunchGridAsync(CUfunction kernel, int width, int height, CUstream stream)
{
    struct turn turn;
    turn_begin(&turn, stream, kernel, (uint64_t)width * (uint64_t)height);
    return turn_end(&turn, REAL(cuLaunchGridAsync)(kernel, width, height, stream));
}

static CUresult capture_changed(CUresult result, int by)
{
    if (result == CUDA_SUCCESS) {
        __atomic_fetch_add(&captures, by, __ATOMIC_RELAXED);
    }
    return result;
}

HOOKED CUresult cuStreamBeginCapture(CUstream stream)
{
    return capture_changed(REAL(cuStreamBeginCapture)(stream), 1);
}

#define CAPTURE(begin, begin_to_graph, end)                                                                           \
    HOOKED CUresult begin(CUstream stream, int kind)                                                                  \
    {                                                                                                                 \
        return capture_changed(REAL(begin)(stream, kind), 1);                                                         \
    }                                                                                                                 \
    HOOKED CUresult begin_to_graph(CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges,       \
                                   size_t count, int kind)                                                            \
    {                                                                                                                 \
        return capture_changed(REAL(begin_to_graph)(stream, graph, after, edges, count, kind), 1);                    \
    }                                                                                                                 \
    /* Over in any case: one that went wrong cannot be gone on with. */                                               \
    HOOKED CUresult end(CUstream stream, CUgraph *graph)                                                              \
    {                                                                                                                 \
        bool was = is_recorded(stream);                                                                               \
        CUresult result = REAL(end)(stream, graph);                                                                   \
        capture_changed(CUDA_SUCCESS, was ? -1 : 0);                                                                  \
        return result;                                                                                                \
    }
CAPTURE(cuStreamBeginCapture_v2, cuStreamBeginCaptureToGraph, cuStreamEndCapture)
CAPTURE(cuStreamBeginCapture_v2_ptsz, cuStreamBeginCaptureToGraph_ptsz, cuStreamEndCapture_ptsz)
