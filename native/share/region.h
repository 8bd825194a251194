/*
 * The region: a memory-mapped file that all processes of one container share. It holds who has how much of each GPU,
 * the credit of device time, and counters for the profiler.
 *
 * Everything has a fixed place: slots never move. Whoever changes a field's place or meaning raises SHARE_LAYOUT, and
 * does the same in src/batuta/gpu/share/region.py; a test compares the two, field by field.
 */
#ifndef BATUTA_SHARE_REGION_H
#define BATUTA_SHARE_REGION_H

#include "glibc.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHARE_REGION_MAGIC 0x4552414853545542ull /* "BUTSHARE" as it lies in the file */
#define SHARE_CARD_MAGIC 0x4452414353545542ull   /* "BUTSCARD" */
#define SHARE_DEMAND_MAGIC 0x444e414d45444542ull /* "BEDEMAND" */
#define SHARE_LAYOUT 1u
#define SHARE_CARD_LAYOUT 2u /* of card.h */

enum {
    SHARE_DEVICES = 16,
    SHARE_PROCESSES = 256,
    SHARE_TENANTS = 64,
    SHARE_UUID = 48,
};

#define SHARE_UNLIMITED UINT64_MAX
#define SHARE_MILLISECOND_NS 1000000ll
#define SHARE_SECOND_NS 1000000000ll

/* One GPU, for the whole container. */
struct share_device {
    char uuid[SHARE_UUID];
    /* Of the limits file, for whoever looks. */
    uint64_t limit_bytes;
    uint32_t hard_permille; /* 1000: no hard limit */
    uint32_t soft_permille; /* 0: no soft limit */
    uint32_t weight;
    uint32_t reserved;

    /* Memory: with the lock held. The sums of what the processes have. */
    uint64_t used_bytes;
    uint64_t peak_bytes;
    uint64_t refusals;

    /* Compute: atomic, without the lock. */
    uint64_t launches;
    uint64_t charged_ns; /* device time, as estimated and corrected */
    uint64_t waited_ns;  /* what launches waited for credit, all threads together */
    int64_t spent_until_ns; /* the moment until which the credit is spent */
    uint32_t rate_permille; /* device time that the container has now, for each unit of time */
    uint32_t factor_permille; /* what estimates are multiplied with, so that they agree with NVML */
    int64_t corrected_ns;
    uint64_t corrected_charged_ns;
    uint64_t longest_ns; /* charged at once since then */
    int64_t published_ns;
    uint64_t published_charged_ns;
};

/* What a process has of one device. */
struct share_use {
    uint64_t used_bytes;
    uint64_t peak_bytes;
    uint64_t launches;
};

/* A process is a pid and the time it started, in clock ticks since boot; a pid alone comes back. */
struct share_process {
    uint32_t taken;
    int32_t pid;
    uint64_t start_ticks;
    struct share_use use[SHARE_DEVICES];
};

struct share_region {
    uint64_t magic;
    uint32_t layout;
    uint32_t devices_count;
    uint64_t size_bytes;
    uint64_t pid_namespace; /* in which the pids mean something */
    uint32_t damaged;       /* somebody died with the lock; the next to have it puts the sums right */
    uint32_t repairs;
    char container[64];
    union {
        pthread_mutex_t mutex;
        char space[64];
    } lock;
    struct share_device devices[SHARE_DEVICES];
    struct share_process processes[SHARE_PROCESSES];
};

/* Maps the region, and makes it if it is not there. NULL when that cannot be; why is said on standard error. */
struct share_region *region_open(const char *path);

/* The lock. A holder that was killed is noticed here, and what it left is put right. False: the region is broken. */
bool region_lock(struct share_region *region);
void region_unlock(struct share_region *region);

/* All below: with the lock held. */

/* The place of a device, taken now if it had none; -1 when all are taken. */
int region_device(struct share_region *region, const char *uuid);
/* A slot for this process, or -1 when all are taken. */
int region_attach(struct share_region *region);
void region_detach(struct share_region *region, uint32_t process);
/* Frees the slots of processes that are gone. */
void region_reap(struct share_region *region);
/* Takes memory; false when the limit would be exceeded, also after those that are gone gave theirs back. */
bool region_take(struct share_region *region, uint32_t process, uint32_t device, uint64_t bytes, uint64_t limit_bytes);
void region_give_back(struct share_region *region, uint32_t process, uint32_t device, uint64_t bytes);

/* How many devices it has; never more than there is room for, whatever the file says. */
uint32_t region_devices(const struct share_region *region);
/* The UUID of a device; whole, whatever the file says. */
void region_uuid(const struct share_region *region, uint32_t device, char uuid[SHARE_UUID]);

/* From now on a region that is cut off under a running process becomes one of zeros instead of ending the process.
 * NULL: no longer. */
void region_guard(struct share_region *region);
/* Whether that has happened: then the accounts are gone, and nothing more may be given. */
bool region_is_lost(void);

int64_t share_now_ns(void);
/* The time between two moments, of which the earlier may be any number: at most INT64_MAX, at least -INT64_MAX. */
int64_t elapsed_ns(int64_t now_ns, int64_t before_ns);

#endif
