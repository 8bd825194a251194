/*
 * Credit: a container whose share is r has r seconds of device time for each second. Kept as one moment: until when the
 * credit is spent. A launch that takes t moves it by t / r, and waits while it lies ahead. One number, changed in one
 * step, cannot be left half done by a process that is killed.
 */
#define _GNU_SOURCE
#include "credit.h"

#include <time.h>

/* What may be saved up while nothing is launched. */
#define SAVED_NS (100 * SHARE_MILLISECOND_NS)
/* Launches are let through in runs of this length: sleeping for each would cost more than short kernels take. */
#define RUN_NS (4 * SHARE_MILLISECOND_NS)
/* A wait is looked at again so often: others may come and go, and limits change. */
#define SLICE_NS (10 * SHARE_MILLISECOND_NS)
#define LOOK_EVERY_NS (4 * SHARE_MILLISECOND_NS)
#define PUBLISH_EVERY_NS (50 * SHARE_MILLISECOND_NS)
/* How long one that has launched counts as one that wants more. */
#define INTEREST_NS (250 * SHARE_MILLISECOND_NS)
/* A debt that no launch can have made: the machine was started anew, and its clock too. */
#define MOST_DEBT_NS (600 * SHARE_SECOND_NS)

static int64_t looked_ns[SHARE_DEVICES]; /* atomic */

static uint32_t hard_permille(const struct place *place)
{
    uint32_t hard = __atomic_load_n(&place->hard_permille, __ATOMIC_RELAXED);
    return hard == 0 ? 1000 : hard;
}

/* Without a card nobody can tell whether it is idle: then a soft limit is a hard one. */
static uint32_t permille_without_card(const struct place *place)
{
    uint32_t soft = __atomic_load_n(&place->soft_permille, __ATOMIC_RELAXED);
    return soft != 0 ? soft : hard_permille(place);
}

bool credit_is_limited(int place)
{
    const struct place *own = &share.places[place];
    return __atomic_load_n(&own->has_card, __ATOMIC_ACQUIRE) || permille_without_card(own) < 1000;
}

static int64_t debt_ns(const struct share_device *device, int64_t now_ns)
{
    int64_t ahead_ns = -elapsed_ns(now_ns, __atomic_load_n(&device->spent_until_ns, __ATOMIC_RELAXED));
    return ahead_ns > MOST_DEBT_NS ? 0 : ahead_ns;
}

/* How much of the device's time was charged of late; what was said before while that is too soon to say. */
static uint32_t use_permille(struct share_device *device, uint32_t said, int64_t now_ns)
{
    int64_t before_ns = __atomic_load_n(&device->published_ns, __ATOMIC_RELAXED);
    int64_t passed_ns = elapsed_ns(now_ns, before_ns);
    if ((passed_ns >= 0 && passed_ns < PUBLISH_EVERY_NS) ||
        !__atomic_compare_exchange_n(&device->published_ns, &before_ns, now_ns, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED)) {
        return said;
    }
    uint64_t charged_ns = __atomic_load_n(&device->charged_ns, __ATOMIC_RELAXED);
    uint64_t before = __atomic_exchange_n(&device->published_charged_ns, charged_ns, __ATOMIC_RELAXED);
    uint64_t use = passed_ns <= 0 ? 1000 : (charged_ns - before) * 1000 / (uint64_t)passed_ns;
    return (uint32_t)(use > 1000 ? 1000 : use);
}

/* What the processes of the container want together: each adds to what the others have said. */
static void publish(int place, struct card_view *view, int64_t now_ns, bool hungry)
{
    struct share_device *device = &share.region->devices[place];
    struct share_demand demand = view->demands[view->own];
    int64_t ahead_ns = debt_ns(device, now_ns);
    ahead_ns = ahead_ns < 0 ? 0 : ahead_ns > 5 * SHARE_SECOND_NS ? 5 * SHARE_SECOND_NS : ahead_ns;
    demand.magic = SHARE_DEMAND_MAGIC;
    demand.layout = SHARE_CARD_LAYOUT;
    demand.active_until_ns = now_ns + ahead_ns + INTEREST_NS;
    if (hungry || demand.hungry_until_ns > now_ns + INTEREST_NS) {
        demand.hungry_until_ns = now_ns + INTEREST_NS;
    }
    demand.use_permille = use_permille(device, demand.use_permille, now_ns);
    card_publish(place, view, &demand, now_ns);
}

/* Another rate also holds for what is owed already. */
static void set_rate(struct share_device *device, uint32_t rate, int64_t now_ns)
{
    uint32_t before = __atomic_exchange_n(&device->rate_permille, rate, __ATOMIC_RELAXED);
    int64_t spent_ns = __atomic_load_n(&device->spent_until_ns, __ATOMIC_RELAXED);
    int64_t ahead_ns = debt_ns(device, now_ns);
    if (before != rate && before != 0 && before <= 1000 && ahead_ns > 0) {
        /* Not tried again if another thread was faster: the next look finds the rate as it is. */
        __atomic_compare_exchange_n(&device->spent_until_ns, &spent_ns, now_ns + ahead_ns * before / rate, false,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
}

/* Finds out what the container may have now. `hungry`: it waits for more. */
static void look(int place, int64_t now_ns, bool hungry)
{
    const struct place *own = &share.places[place];
    uint32_t rate = permille_without_card(own);
    __atomic_store_n(&looked_ns[place], now_ns, __ATOMIC_RELAXED);
    share_refresh(now_ns);
    if (__atomic_load_n(&own->has_card, __ATOMIC_ACQUIRE)) {
        struct card_view *view = card_view_take(place, now_ns);
        if (view == NULL) {
            return; /* another thread looks this very moment */
        }
        if (view->own >= 0) {
            publish(place, view, now_ns, hungry);
            uint32_t share_now = card_share(view, now_ns), most = hard_permille(own);
            rate = share_now < most ? share_now : most;
        }
        card_view_return(place);
    }
    set_rate(&share.region->devices[place], rate, now_ns);
}

bool credit_wait(int place)
{
    struct share_device *device = &share.region->devices[place];
    int64_t begun_ns = share_now_ns();
    if (begun_ns - __atomic_load_n(&looked_ns[place], __ATOMIC_RELAXED) > LOOK_EVERY_NS) {
        look(place, begun_ns, false);
    }
    if (debt_ns(device, begun_ns) <= RUN_NS) {
        return false;
    }
    int64_t now_ns = begun_ns, ahead_ns;
    look(place, now_ns, true);
    while ((ahead_ns = debt_ns(device, now_ns)) > 0) {
        struct timespec length = {0, ahead_ns < SLICE_NS ? ahead_ns : SLICE_NS};
        nanosleep(&length, NULL);
        now_ns = share_now_ns();
        look(place, now_ns, true);
    }
    __atomic_fetch_add(&device->waited_ns, (uint64_t)(now_ns - begun_ns), __ATOMIC_RELAXED);
    return true;
}

void credit_charge(int place, int64_t device_ns)
{
    struct share_device *device = &share.region->devices[place];
    uint32_t rate = __atomic_load_n(&device->rate_permille, __ATOMIC_RELAXED);
    device_ns = device_ns > MOST_DEBT_NS ? MOST_DEBT_NS : device_ns < -MOST_DEBT_NS ? -MOST_DEBT_NS : device_ns;
    int64_t length_ns = device_ns * 1000 / (rate == 0 || rate > 1000 ? 1000 : rate);
    int64_t now_ns = share_now_ns();
    int64_t spent_ns = __atomic_load_n(&device->spent_until_ns, __ATOMIC_RELAXED), next_ns;
    do {
        /* Nothing was saved before the first launch. */
        int64_t from_ns = spent_ns == 0 || spent_ns > now_ns + MOST_DEBT_NS ? now_ns : spent_ns;
        from_ns = from_ns < now_ns - SAVED_NS ? now_ns - SAVED_NS : from_ns;
        next_ns = from_ns + length_ns;
    } while (!__atomic_compare_exchange_n(&device->spent_until_ns, &spent_ns, next_ns, true, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
}
