/* Memory of the container: reserved before the driver gives it, given back when the driver has it again. */
#define _GNU_SOURCE
#include "share.h"

#include <stdio.h>

bool share_reserve(CUdevice device, uint64_t bytes)
{
    int place = share_place(device);
    if (place == NOT_GIVEN || !region_lock(share.region)) {
        return false;
    }
    uint64_t limit_bytes = __atomic_load_n(&share.places[place].limit_bytes, __ATOMIC_RELAXED);
    int process = share_process();
    bool taken = process >= 0 && region_take(share.region, (uint32_t)process, (uint32_t)place, bytes, limit_bytes);
    region_unlock(share.region);
    static bool said;
    if (process < 0 && !said) {
        said = true;
        fprintf(stderr, "batuta share: %d processes of this container have GPU memory already, no more is given\n",
                SHARE_PROCESSES);
    }
    return taken && !region_is_lost();
}

void share_give_back(CUdevice device, uint64_t bytes)
{
    int place = share_place(device);
    int process = share_known_process();
    if (place != NOT_GIVEN && process >= 0 && region_lock(share.region)) {
        region_give_back(share.region, (uint32_t)process, (uint32_t)place, bytes);
        region_unlock(share.region);
    }
}

bool share_memory(int place, uint64_t *limit_bytes, uint64_t *used_bytes)
{
    if (place == NOT_GIVEN) {
        *limit_bytes = *used_bytes = 0;
        return true;
    }
    *limit_bytes = __atomic_load_n(&share.places[place].limit_bytes, __ATOMIC_RELAXED);
    if (*limit_bytes == SHARE_UNLIMITED || !region_lock(share.region)) {
        return false;
    }
    region_reap(share.region);
    *used_bytes = share.region->devices[place].used_bytes;
    region_unlock(share.region);
    return true;
}
