/* Starting: the limits, the region, the slot of this process; and starting again in the child of a fork. */
#define _GNU_SOURCE
#include "share.h"

#include <stdio.h>
#include <string.h>

#define REFRESH_EVERY_NS (SHARE_SECOND_NS / 2)

struct share share;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static enum mode mode;
static int process = -1; /* atomic */
static char path[SHARE_PATH];
static struct limits limits;
static struct stat seen;
static int64_t refreshed_ns; /* atomic */
static pthread_mutex_t refreshing = PTHREAD_MUTEX_INITIALIZER;

static void set_place(struct share_device *device, struct place *place, const struct limit *limit)
{
    __atomic_store_n(&place->limit_bytes, limit->bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&place->hard_permille, limit->hard_permille, __ATOMIC_RELAXED);
    __atomic_store_n(&place->soft_permille, limit->soft_permille, __ATOMIC_RELAXED);
    __atomic_store_n(&place->weight, limit->weight, __ATOMIC_RELAXED);
    __atomic_store_n(&device->limit_bytes, limit->bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&device->hard_permille, limit->hard_permille, __ATOMIC_RELAXED);
    __atomic_store_n(&device->soft_permille, limit->soft_permille, __ATOMIC_RELAXED);
    __atomic_store_n(&device->weight, limit->weight, __ATOMIC_RELAXED);
}

/* A number for the container that others on a card do not have: of its region's path, which is its own. The writer of
 * the card makes the same one, in src/batuta/gpu/share/cards.py. */
static uint64_t key_of(const char *text)
{
    uint64_t key = 14695981039346656037ull;
    while (*text != '\0') {
        key = (key ^ (unsigned char)*text++) * 1099511628211ull;
    }
    return key | 1;
}

/* Gives each device its limits, and its card. With the lock held. */
static void set_places(void)
{
    for (uint32_t l = 0; l < limits.count; l++) {
        const struct limit *limit = &limits.devices[l];
        int d = region_device(share.region, limit->uuid);
        if (d < 0) {
            continue;
        }
        struct share_device *device = &share.region->devices[d];
        struct place *place = &share.places[d];
        set_place(device, place, limit);
        if (!place->has_card && *limits.cards != '\0') {
            if (*share.cards == '\0') {
                memcpy(share.cards, limits.cards, sizeof share.cards);
            }
            memcpy(place->uuid, limit->uuid, sizeof place->uuid);
            __atomic_store_n(&place->has_card, true, __ATOMIC_RELEASE);
        }
    }
}

static void after_fork(void)
{
    process = -1;
    pthread_mutex_init(&refreshing, NULL);
    card_after_fork();
}

static void start(void)
{
    const char *named = limits_path();
    if (named == NULL) {
        return;
    }
    mode = MODE_BROKEN;
    if (strlen(named) >= sizeof path || limits_read(named, &limits, &seen) != LIMITS_READ) {
        return;
    }
    strcpy(path, named);
    share.region = region_open(limits.region);
    if (share.region == NULL || !region_lock(share.region)) {
        return;
    }
    share.key = key_of(limits.region);
    snprintf(share.region->container, sizeof share.region->container, "%s", limits.container);
    set_places();
    region_unlock(share.region);
    refreshed_ns = share_now_ns();
    pthread_atfork(NULL, NULL, after_fork);
    mode = MODE_ON;
}

enum mode share_mode(void)
{
    pthread_once(&once, start);
    return mode;
}

static bool is_replaced(void)
{
    struct stat now;
    return stat(path, &now) == 0 && (now.st_ino != seen.st_ino || now.st_mtim.tv_sec != seen.st_mtim.tv_sec ||
                                     now.st_mtim.tv_nsec != seen.st_mtim.tv_nsec);
}

void share_refresh(int64_t now_ns)
{
    if (now_ns - __atomic_load_n(&refreshed_ns, __ATOMIC_RELAXED) < REFRESH_EVERY_NS ||
        pthread_mutex_trylock(&refreshing) != 0) {
        return;
    }
    __atomic_store_n(&refreshed_ns, now_ns, __ATOMIC_RELAXED);
    static struct limits newer;
    struct stat status;
    /* A file that cannot be read, or not trusted, changes nothing: what was known before still holds. */
    if (is_replaced() && limits_read(path, &newer, &status) == LIMITS_READ) {
        limits = newer;
        seen = status;
        if (region_lock(share.region)) {
            set_places();
            region_unlock(share.region);
        }
    }
    pthread_mutex_unlock(&refreshing);
}

int share_process(void)
{
    if (process < 0) {
        __atomic_store_n(&process, region_attach(share.region), __ATOMIC_RELAXED);
    }
    return process;
}

int share_known_process(void)
{
    return __atomic_load_n(&process, __ATOMIC_RELAXED);
}
