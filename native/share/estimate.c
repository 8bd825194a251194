/*
 * What launches cost, from those that were measured. The rest is taken to be like those of the same function and size,
 * or of the same function if the size is new. A measurement also sees what other containers had in between, so the
 * shortest of the last ones counts. What is still wrong, NVML corrects.
 */
#define _GNU_SOURCE
#include "estimate.h"

#include "credit.h"

enum {
    ESTIMATES = 4096,
    WAYS = 4,
    FIRST_MEASURES = 4,
    /* The cost is known after so many: a single one may have met a pause of this very process. */
    ENOUGH_MEASURES = 3,
    REMEMBERED = 16,
    /* What a launch is charged while nothing is known of it. */
    UNKNOWN_NS = 10000,
    /* Nothing is free: a cost of 0 stands for one that is not known. */
    LEAST_NS = 1000,
};
/* One kind of launch is measured so often; and at the latest then, even after a pause. */
#define MEASURE_EVERY_NS (10 * SHARE_MILLISECOND_NS)
#define MEASURE_AT_LEAST_NS (50 * SHARE_MILLISECOND_NS)
#define MEASURE_NEW_EVERY_NS SHARE_MILLISECOND_NS
/* What a launch was short of when its cost became known is charged later, up to this. */
#define MOST_ARREARS_NS (250 * SHARE_MILLISECOND_NS)

/* All atomic. */
struct estimate {
    uint64_t key;
    int64_t cost_ns;
    int64_t shortest_ns[2]; /* of up to REMEMBERED measurements: of these, and of those before */
    int64_t measured_ns; /* when, last */
    uint32_t measures;
    uint32_t unknown; /* of a function: launches that were charged before anything was known of it */
};

static struct estimate estimates[ESTIMATES];

/* The estimate of a key; one that is not known takes the place of another that is not used. */
static struct estimate *estimate_of(uint64_t key)
{
    size_t home = (size_t)(key * 0x9e3779b97f4a7c15ull >> 40) & (ESTIMATES - 1) & ~(size_t)(WAYS - 1);
    struct estimate *oldest = &estimates[home];
    for (size_t w = 0; w < WAYS; w++) {
        struct estimate *one = &estimates[home + w];
        uint64_t known = __atomic_load_n(&one->key, __ATOMIC_RELAXED);
        if (known == key) {
            return one;
        }
        if (__atomic_load_n(&one->measured_ns, __ATOMIC_RELAXED) <
            __atomic_load_n(&oldest->measured_ns, __ATOMIC_RELAXED)) {
            oldest = one;
        }
    }
    __atomic_store_n(&oldest->key, key, __ATOMIC_RELAXED);
    __atomic_store_n(&oldest->cost_ns, UNKNOWN_NS, __ATOMIC_RELAXED);
    __atomic_store_n(&oldest->measured_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&oldest->measures, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&oldest->unknown, 0, __ATOMIC_RELAXED);
    return oldest;
}

static int64_t corrected(int place, int64_t cost_ns)
{
    return cost_ns * utilisation_factor(place) / 1000;
}

/* The shortest of the last measurements: between REMEMBERED and twice as many. */
static int64_t remember(struct estimate *estimate, uint32_t number, int64_t measured_ns)
{
    int64_t shortest_ns = __atomic_load_n(&estimate->shortest_ns[0], __ATOMIC_RELAXED);
    if (number % REMEMBERED == 0) {
        __atomic_store_n(&estimate->shortest_ns[1], number == 0 ? measured_ns : shortest_ns, __ATOMIC_RELAXED);
        shortest_ns = measured_ns;
    }
    shortest_ns = measured_ns < shortest_ns ? measured_ns : shortest_ns;
    __atomic_store_n(&estimate->shortest_ns[0], shortest_ns, __ATOMIC_RELAXED);
    int64_t before_ns = __atomic_load_n(&estimate->shortest_ns[1], __ATOMIC_RELAXED);
    return before_ns < shortest_ns ? before_ns : shortest_ns;
}

/* Charges what was not known when functions like this one were launched. */
static void settle_arrears(int place, struct estimate *family, int64_t measured_ns)
{
    uint32_t launches = __atomic_exchange_n(&family->unknown, 0, __ATOMIC_RELAXED);
    if (launches > 0) {
        int64_t owed_ns = corrected(place, (measured_ns - UNKNOWN_NS) * (int64_t)launches);
        owed_ns = owed_ns > MOST_ARREARS_NS ? MOST_ARREARS_NS : owed_ns;
        __atomic_fetch_add(&share.region->devices[place].charged_ns, (uint64_t)owed_ns, __ATOMIC_RELAXED);
        credit_charge(place, owed_ns);
    }
}

/* Of a function, whatever the size: the mean, of late. One that is far longer has met a pause, and counts for less. */
static void learn_family(uint64_t family, int64_t measured_ns)
{
    struct estimate *estimate = estimate_of(family);
    uint32_t number = __atomic_fetch_add(&estimate->measures, 1, __ATOMIC_RELAXED);
    int64_t known_ns = __atomic_load_n(&estimate->cost_ns, __ATOMIC_RELAXED);
    int64_t heeded_ns = measured_ns > 2 * known_ns ? 2 * known_ns : measured_ns;
    known_ns = number == 0 ? measured_ns : known_ns + (heeded_ns - known_ns) / 8;
    __atomic_store_n(&estimate->cost_ns, known_ns, __ATOMIC_RELAXED);
}

void estimate_learn(int place, const struct launch *launch, int64_t measured_ns)
{
    struct estimate *estimate = estimate_of(launch->key);
    measured_ns = measured_ns < LEAST_NS ? LEAST_NS : measured_ns;
    if (launch->family != launch->key) {
        learn_family(launch->family, measured_ns);
    }
    uint32_t number = __atomic_load_n(&estimate->measures, __ATOMIC_RELAXED);
    int64_t cost_ns = remember(estimate, number, measured_ns);
    settle_arrears(place, estimate_of(launch->family), measured_ns);
    __atomic_store_n(&estimate->measures, number + 1, __ATOMIC_RELAXED);
    if (number + 1 >= ENOUGH_MEASURES) {
        __atomic_store_n(&estimate->cost_ns, cost_ns, __ATOMIC_RELAXED);
    }
}

static bool is_known(const struct launch *launch)
{
    return __atomic_load_n(&estimate_of(launch->key)->measures, __ATOMIC_RELAXED) >= ENOUGH_MEASURES;
}

/* The mean of the function, for a size that is not known; 0 when that is not known either. */
static int64_t family_cost_ns(const struct launch *launch)
{
    const struct estimate *family = launch->family == launch->key ? NULL : estimate_of(launch->family);
    bool known = family != NULL && __atomic_load_n(&family->measures, __ATOMIC_RELAXED) > 0;
    return known ? __atomic_load_n(&family->cost_ns, __ATOMIC_RELAXED) : 0;
}

int64_t estimate_cost(int place, const struct launch *launch)
{
    int64_t cost_ns = is_known(launch)
                          ? __atomic_load_n(&estimate_of(launch->key)->cost_ns, __ATOMIC_RELAXED)
                          : family_cost_ns(launch);
    return corrected(place, cost_ns);
}

int64_t estimate_unknown(int place, const struct launch *launch)
{
    __atomic_fetch_add(&estimate_of(launch->family)->unknown, 1, __ATOMIC_RELAXED);
    return corrected(place, UNKNOWN_NS);
}

bool estimate_is_overdue(const struct launch *launch)
{
    return __atomic_load_n(&estimate_of(launch->family)->unknown, __ATOMIC_RELAXED) >= FIRST_MEASURES;
}

static bool is_older(const struct estimate *estimate, int64_t now_ns, int64_t age_ns)
{
    return now_ns - __atomic_load_n(&estimate->measured_ns, __ATOMIC_RELAXED) > age_ns;
}

/* A program with ever new sizes is not measured at every launch, but as often as one with few. */
bool estimate_is_due(const struct launch *launch, int64_t now_ns, bool paused)
{
    const struct estimate *estimate = estimate_of(launch->key);
    if (__atomic_load_n(&estimate->measures, __ATOMIC_RELAXED) < FIRST_MEASURES) {
        int64_t age_ns = paused ? MEASURE_AT_LEAST_NS : MEASURE_NEW_EVERY_NS;
        return family_cost_ns(launch) == 0 || is_older(estimate_of(launch->family), now_ns, age_ns);
    }
    return is_older(estimate, now_ns, paused ? MEASURE_AT_LEAST_NS : MEASURE_EVERY_NS);
}

void estimate_begin(const struct launch *launch, int64_t now_ns)
{
    __atomic_store_n(&estimate_of(launch->key)->measured_ns, now_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&estimate_of(launch->family)->measured_ns, now_ns, __ATOMIC_RELAXED);
}
