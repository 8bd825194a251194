/*
 * Measuring launches, with events before and after some of them: nobody knows before a kernel runs how long it will. A
 * launch right behind another of the same process is measured rather than one after a pause, in which others may have
 * come.
 */
#define _GNU_SOURCE
#include "credit.h"
#include "estimate.h"

#include <time.h>

enum { MEASURES = 16, WAIT_STEP_NS = 200000, WAIT_STEPS = 100 };

struct pending {
    CUevent before, after;
    CUcontext context; /* NULL: there are no events yet */
    struct launch launch;
    int place;
    bool busy;
};

static struct pending pendings[MEASURES];
/* Never waited for: a launch that does not get it is not measured. */
static pthread_mutex_t measuring = PTHREAD_MUTEX_INITIALIZER;

/* With `measuring` held: takes in what has been measured meanwhile. */
static void collect(void)
{
    for (int m = 0; m < MEASURES; m++) {
        struct pending *one = &pendings[m];
        float milliseconds;
        if (!one->busy || REAL(cuEventQuery)(one->after) == CUDA_ERROR_NOT_READY) {
            continue;
        }
        one->busy = false;
        if (REAL(cuEventElapsedTime)(&milliseconds, one->before, one->after) == CUDA_SUCCESS) {
            estimate_learn(one->place, &one->launch, (int64_t)((double)milliseconds * 1e6));
        }
    }
}

/* Launches of what is not known yet could fill the device's queue before their cost is. So after the first few, each
 * waits a little: a kernel that needs another one to go on must get it in the end. */
static int64_t wait_for_cost(int place, const struct launch *launch)
{
    const struct timespec step = {0, WAIT_STEP_NS};
    int64_t cost_ns = 0;
    for (int s = 0; s < WAIT_STEPS && cost_ns == 0; s++) {
        if (s > 0) {
            nanosleep(&step, NULL);
        }
        if (pthread_mutex_trylock(&measuring) == 0) {
            collect();
            pthread_mutex_unlock(&measuring);
        }
        cost_ns = estimate_cost(place, launch);
    }
    return cost_ns;
}

int64_t cost_of(int place, const struct launch *launch, bool may_wait)
{
    int64_t cost_ns = estimate_cost(place, launch);
    if (cost_ns == 0 && may_wait && estimate_is_overdue(launch)) {
        cost_ns = wait_for_cost(place, launch);
    }
    return cost_ns != 0 ? cost_ns : estimate_unknown(place, launch);
}

/* With `measuring` held: two events of the context that nobody waits for; -1 when there are none. */
static int find_pending(CUcontext context)
{
    int made = -1;
    for (int m = 0; m < MEASURES; m++) {
        if (!pendings[m].busy && pendings[m].context == context) {
            return m;
        }
        made = pendings[m].context == NULL ? m : made;
    }
    if (made >= 0) {
        struct pending *one = &pendings[made];
        if (REAL(cuEventCreate)(&one->before, 0) != CUDA_SUCCESS) {
            return -1;
        }
        if (REAL(cuEventCreate)(&one->after, 0) != CUDA_SUCCESS) {
            REAL(cuEventDestroy_v2)(one->before);
            return -1;
        }
        one->context = context;
    }
    return made;
}

void cost_measure_begin(struct measure *measure, int place, const struct launch *launch, CUcontext context,
                        CUstream stream, bool paused)
{
    int64_t now_ns = share_now_ns();
    CUcontext current = NULL;
    measure->slot = -1;
    if (!estimate_is_due(launch, now_ns, paused) || pthread_mutex_trylock(&measuring) != 0) {
        return;
    }
    collect();
    /* Events are made in the current context, and have to be in that of the stream. */
    if (REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == context) {
        measure->slot = find_pending(context);
    }
    if (measure->slot >= 0 && REAL(cuEventRecord)(pendings[measure->slot].before, stream) != CUDA_SUCCESS) {
        measure->slot = -1;
    }
    if (measure->slot < 0) {
        pthread_mutex_unlock(&measuring);
        return;
    }
    estimate_begin(launch, now_ns);
    pendings[measure->slot].launch = *launch;
    pendings[measure->slot].place = place;
}

void cost_measure_end(const struct measure *measure, CUstream stream, bool launched)
{
    if (measure->slot < 0) {
        return;
    }
    struct pending *one = &pendings[measure->slot];
    one->busy = launched && REAL(cuEventRecord)(one->after, stream) == CUDA_SUCCESS;
    pthread_mutex_unlock(&measuring);
}

void cost_forget_context(CUcontext context)
{
    pthread_mutex_lock(&measuring);
    for (int m = 0; m < MEASURES; m++) {
        if (pendings[m].context == context) {
            pendings[m].context = NULL;
            pendings[m].busy = false;
        }
    }
    pthread_mutex_unlock(&measuring);
}
