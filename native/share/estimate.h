/* What launches cost, as far as measurements tell. No lock: a figure that two threads write at once is soon right. */
#ifndef BATUTA_SHARE_ESTIMATE_H
#define BATUTA_SHARE_ESTIMATE_H

#include "share.h"

/* What is launched: a function with a number of threads, and the function whatever the number. */
struct launch {
    uint64_t key;
    uint64_t family;
};

/* What a launch takes, by its own measurements or those of its family; 0 when there are none. */
int64_t estimate_cost(int place, const struct launch *launch);
/* What one is charged of which nothing is known; the rest of it is, when that changes. */
int64_t estimate_unknown(int place, const struct launch *launch);
/* Whether so many of which nothing is known were launched that it should be found out. */
bool estimate_is_overdue(const struct launch *launch);

/* Whether a launch is to be measured. `paused`: it comes after a wait. */
bool estimate_is_due(const struct launch *launch, int64_t now_ns, bool paused);
/* It is being measured. */
void estimate_begin(const struct launch *launch, int64_t now_ns);
void estimate_learn(int place, const struct launch *launch, int64_t measured_ns);

#endif
