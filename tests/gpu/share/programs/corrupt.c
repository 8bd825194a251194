/*
 * Works with a region, a card and demands that hold anything, for sanitizers: every round spoils some bytes of each and
 * calls what launches and allocations call. REGION CARD DEMAND ROUNDS, with limits that name all three.
 */
#define _GNU_SOURCE
#include "credit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t state = 0x243f6a8885a308d3ull;

static uint32_t chance(uint32_t below)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((state >> 33) % below);
}

/* Numbers at which sums and products go wrong, and some of those that mean nothing. */
static uint64_t nasty(void)
{
    static const uint64_t NUMBERS[] = {0, 1, 16, 17, 1000, UINT32_MAX, INT32_MAX, INT64_MAX, 1ull << 63, UINT64_MAX};
    uint32_t which = chance(sizeof NUMBERS / sizeof *NUMBERS + 1);
    return which < sizeof NUMBERS / sizeof *NUMBERS ? NUMBERS[which] : state;
}

static void spoil(char *bytes, size_t size, uint32_t times)
{
    for (uint32_t t = 0; t < times; t++) {
        uint64_t number = nasty();
        memcpy(bytes + chance((uint32_t)(size / 4 - 1)) * 4, &number, chance(2) ? 4 : 8);
    }
}

/* The lock stays: a mutex of nonsense may wait for ever, and says nothing about what is read behind it. And a debt is
 * short or not possible: waiting for ten minutes is what a container that spoils its own region gets. */
static void spoil_region(struct share_region *region)
{
    const size_t head = offsetof(struct share_region, lock);
    static struct share_region copy;
    memcpy(&copy, region, sizeof copy);
    spoil((char *)&copy + 24, head - 24, 2); /* behind magic, layout, count and size */
    copy.devices_count = (uint32_t)nasty();
    spoil((char *)copy.devices, sizeof copy.devices, 60);
    spoil((char *)copy.processes, 4 * sizeof *copy.processes, 20);
    for (int d = 0; d < SHARE_DEVICES; d++) {
        int64_t *spent_ns = &copy.devices[d].spent_until_ns;
        int64_t ahead_ns = elapsed_ns(*spent_ns, share_now_ns());
        *spent_ns = ahead_ns > 0 && ahead_ns < 3600 * SHARE_SECOND_NS ? share_now_ns() : *spent_ns;
    }
    memcpy((char *)region + 12, (char *)&copy + 12, head - 12);
    memcpy(region->devices, copy.devices, sizeof copy.devices);
    memcpy(region->processes, copy.processes, sizeof copy.processes);
}

static void spoil_file(const char *path, size_t size)
{
    static char bytes[1 << 16];
    int descriptor = open(path, O_RDWR);
    if (descriptor < 0 || pread(descriptor, bytes, size, 0) < 0) {
        exit(4);
    }
    spoil(bytes, size, 1 + chance(6));
    bool cut = chance(16) == 0;
    if (pwrite(descriptor, bytes, cut ? size / 2 : size, 0) < 0 || ftruncate(descriptor, cut ? size / 2 : size) != 0) {
        exit(5);
    }
    close(descriptor);
}

static void use(void)
{
    struct share_region *region = share.region;
    if (!region_lock(region)) {
        exit(6);
    }
    int process = share_process();
    int device = region_device(region, "GPU-other");
    if (process >= 0 && device >= 0 && region_take(region, (uint32_t)process, (uint32_t)device, 512, 1 << 20)) {
        region_give_back(region, (uint32_t)process, (uint32_t)device, 512);
    }
    region_reap(region);
    region->damaged = 1;
    region_unlock(region);
    if (!region_lock(region)) { /* which puts the sums right */
        exit(7);
    }
    region_unlock(region);
    for (int place = 0; place < SHARE_DEVICES; place++) {
        credit_charge(place, (int64_t)nasty());
        __atomic_store_n(&region->devices[place].spent_until_ns, (int64_t)nasty(), __ATOMIC_RELAXED);
        if (elapsed_ns(region->devices[place].spent_until_ns, share_now_ns()) > 0) {
            region->devices[place].spent_until_ns = INT64_MAX;
        }
        credit_wait(place);
        struct card_view *view = card_view_take(place, share_now_ns() + (int64_t)chance(2) * SHARE_SECOND_NS);
        if (view != NULL) {
            card_is_alone(view, share_now_ns());
            card_view_return(place);
        }
    }
}

int main(int count, char **words)
{
    if (count != 5 || share_mode() != MODE_ON) {
        return 3;
    }
    for (int round = 0; round < atoi(words[4]); round++) {
        spoil_region(share.region);
        spoil_file(words[2], sizeof(struct share_card));
        spoil_file(words[3], sizeof(struct share_demand));
        use();
    }
    puts("done");
    return 0;
}
