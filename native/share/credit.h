/* Device time: what a launch will take, what the container may have, and waiting until both agree. */
#ifndef BATUTA_SHARE_CREDIT_H
#define BATUTA_SHARE_CREDIT_H

#include "estimate.h"
#include "share.h"

/* Waits until the container has credit on the device; false when it need not. */
bool credit_wait(int place);
/* Charges device time, or gives it back if negative. */
void credit_charge(int place, int64_t device_ns);
/* Whether anybody limits the container's time on the device. */
bool credit_is_limited(int place);

/* A launch whose time is being measured. */
struct measure {
    int slot; /* -1: none */
};

/* What a launch takes, as far as it is known; a new one is noted, to be charged when it is. `may_wait`: for the first
 * measurements of it, a little. */
int64_t cost_of(int place, const struct launch *launch, bool may_wait);
/* Begins to measure, if it is time to. The launch comes next, in the same thread. `paused`: it comes after a wait. */
void cost_measure_begin(struct measure *measure, int place, const struct launch *launch, CUcontext context,
                        CUstream stream, bool paused);
void cost_measure_end(const struct measure *measure, CUstream stream, bool launched);
/* The context is gone, and with it the events that were in it. */
void cost_forget_context(CUcontext context);

/* What estimates are multiplied with, in permille. */
int64_t utilisation_factor(int place);
/* Compares what was charged with what NVML has seen, at most once a second, and corrects the estimates. */
void utilisation_correct(int place, int64_t now_ns);

#endif
