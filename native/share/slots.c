/* Who is in the container: a slot for each process, freed when it is gone. */
#define _GNU_SOURCE
#include "region.h"

#include <batuta/process_start.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t pid_namespace(void)
{
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? (uint64_t)status.st_ino : 0;
}

/* What NVML says of the last second is compared with what was charged: only while the same processes run. */
static void restart_comparison(struct share_device *device)
{
    __atomic_store_n(&device->corrected_ns, share_now_ns(), __ATOMIC_RELAXED);
    __atomic_store_n(&device->corrected_charged_ns, __atomic_load_n(&device->charged_ns, __ATOMIC_RELAXED),
                     __ATOMIC_RELAXED);
}

static void free_slot(struct share_region *region, uint32_t process)
{
    struct share_process *slot = &region->processes[process];
    for (uint32_t d = 0; d < region_devices(region); d++) {
        restart_comparison(&region->devices[d]);
        /* Killed between these two lines, `repair` makes the sum from the slots again. */
        region->devices[d].used_bytes -= slot->use[d].used_bytes;
        slot->use[d].used_bytes = 0;
    }
    slot->taken = 0;
}

int region_attach(struct share_region *region)
{
    int pid = (int)getpid();
    int found = -1;
    bool alone = true;
    region_reap(region);
    for (int p = 0; p < SHARE_PROCESSES; p++) {
        struct share_process *slot = &region->processes[p];
        if (slot->taken && slot->pid == pid) {
            free_slot(region, (uint32_t)p); /* the same process, before it called exec */
        }
        alone = alone && !slot->taken;
        if (!slot->taken && found < 0) {
            found = p;
        }
    }
    if (found >= 0) {
        struct share_process *slot = &region->processes[found];
        memset(slot, 0, sizeof *slot);
        slot->pid = pid;
        slot->start_ticks = start_ticks(pid);
        slot->taken = 1;
        region->pid_namespace = pid_namespace();
        for (uint32_t d = 0; d < region_devices(region); d++) {
            restart_comparison(&region->devices[d]);
            if (alone) { /* another program: what was wrong with the last one's estimates says nothing about its own */
                __atomic_store_n(&region->devices[d].factor_permille, 1000, __ATOMIC_RELAXED);
            }
        }
    }
    return found;
}

void region_detach(struct share_region *region, uint32_t process)
{
    free_slot(region, process);
}

void region_reap(struct share_region *region)
{
    for (uint32_t p = 0; p < SHARE_PROCESSES; p++) {
        struct share_process *slot = &region->processes[p];
        if (slot->taken && start_ticks(slot->pid) != slot->start_ticks) {
            free_slot(region, p);
        }
    }
}
