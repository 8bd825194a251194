/* What each container on a card may have of its time, from what all of them may have and want. */
#define _GNU_SOURCE
#include "card.h"

#include <stdio.h>
#include <string.h>

/* A tenant that has not been heard of for so long has left, and its place may be taken. */
#define LEFT_AFTER_NS (60 * SHARE_SECOND_NS)
/* A tenant that is not held back wants what it uses, and room to grow. */
enum { GROWTH_PERCENT = 125, GROWTH_PERMILLE = 20, LEAST_PERMILLE = 10, WHOLE = 1000 };

static void prepare_card(void *mapped)
{
    (void)mapped; /* zeros are a card without tenants */
}

struct share_card *card_open(const char *folder, const char *uuid)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", folder, uuid);
    struct share_card *card = region_map(path, SHARE_CARD_MAGIC, sizeof *card, prepare_card);
    if (card != NULL && *card->uuid == '\0') {
        strncpy(card->uuid, uuid, sizeof card->uuid - 1);
    }
    return card;
}

int card_enter(struct share_card *card, uint64_t key, int64_t now_ns)
{
    for (int t = 0; t < SHARE_TENANTS; t++) {
        if (__atomic_load_n(&card->tenants[t].key, __ATOMIC_ACQUIRE) == key) {
            return t;
        }
    }
    for (int t = 0; t < SHARE_TENANTS; t++) {
        struct share_tenant *tenant = &card->tenants[t];
        uint64_t before = __atomic_load_n(&tenant->key, __ATOMIC_ACQUIRE);
        int64_t active_until_ns = __atomic_load_n(&tenant->active_until_ns, __ATOMIC_RELAXED);
        bool left = before == 0 || now_ns - active_until_ns > LEFT_AFTER_NS || active_until_ns > now_ns + LEFT_AFTER_NS;
        if (left && __atomic_compare_exchange_n(&tenant->key, &before, key, false, __ATOMIC_ACQ_REL,
                                                __ATOMIC_RELAXED)) {
            __atomic_store_n(&tenant->active_until_ns, now_ns, __ATOMIC_RELAXED);
            return t;
        }
    }
    return -1;
}

struct claim {
    uint32_t least;  /* what it gets whoever else comes, if there is so much */
    uint32_t most;
    uint32_t weight;
    uint32_t share;
    bool is_soft; /* it was told that it may get less when the card is promised more often than it is there */
};

static uint32_t smaller(uint32_t one, uint32_t other)
{
    return one < other ? one : other;
}

/* What a tenant wants; false when it wants nothing now. `own`: it is the one who asks, and wants all it can get. */
static bool read_claim(const struct share_tenant *tenant, bool own, int64_t now_ns, struct claim *claim)
{
    int64_t active_until_ns = __atomic_load_n(&tenant->active_until_ns, __ATOMIC_RELAXED);
    if (!own && (__atomic_load_n(&tenant->key, __ATOMIC_RELAXED) == 0 || active_until_ns < now_ns ||
                 active_until_ns > now_ns + LEFT_AFTER_NS)) {
        return false;
    }
    uint32_t wanted = WHOLE;
    if (!own && __atomic_load_n(&tenant->hungry_until_ns, __ATOMIC_RELAXED) < now_ns) {
        uint32_t used = __atomic_load_n(&tenant->use_permille, __ATOMIC_RELAXED);
        wanted = smaller(used * GROWTH_PERCENT / 100 + GROWTH_PERMILLE, WHOLE);
    }
    uint32_t hard = __atomic_load_n(&tenant->hard_permille, __ATOMIC_RELAXED);
    uint32_t soft = __atomic_load_n(&tenant->soft_permille, __ATOMIC_RELAXED);
    /* A hard limit alone is also what the container may count on. */
    claim->least = smaller(soft != 0 ? soft : hard < WHOLE ? hard : 0, wanted);
    claim->most = smaller(hard, wanted);
    claim->is_soft = soft != 0;
    claim->weight = __atomic_load_n(&tenant->weight, __ATOMIC_RELAXED);
    claim->share = claim->least;
    return true;
}

/* Divides what is left by weight, in rounds: what one has no use for goes to the others. */
static void divide(struct claim *claims, int count, uint32_t left)
{
    while (left > 0) {
        uint64_t weights = 0;
        for (int c = 0; c < count; c++) {
            weights += claims[c].share < claims[c].most ? claims[c].weight : 0;
        }
        uint32_t given = 0;
        for (int c = 0; weights > 0 && c < count; c++) {
            struct claim *claim = &claims[c];
            if (claim->share < claim->most) {
                uint32_t part = (uint32_t)((uint64_t)left * claim->weight / weights);
                part = smaller(part, claim->most - claim->share);
                claim->share += part;
                given += part;
            }
        }
        if (given == 0) {
            return; /* nobody wants it, or it is too little to be divided */
        }
        left -= given;
    }
}

/*
 * More was promised than there is. Who has a hard limit was promised that it is there, so those come first; the soft
 * ones get less, in the same ratio. If the hard promises alone are too many, they get less, and the soft ones nothing.
 */
static void cut(struct claim *claims, int count, uint32_t promised)
{
    uint32_t hard = 0;
    for (int c = 0; c < count; c++) {
        hard += claims[c].is_soft ? 0 : claims[c].least;
    }
    uint32_t left = hard < WHOLE ? WHOLE - hard : 0;
    for (int c = 0; c < count; c++) {
        struct claim *claim = &claims[c];
        if (claim->is_soft) {
            claim->share = claim->least * left / (promised - hard);
        } else if (hard > WHOLE) {
            claim->share = claim->least * WHOLE / hard;
        }
    }
}

bool card_is_alone(const struct share_card *card, int tenant, int64_t now_ns)
{
    struct claim claim;
    for (int t = 0; t < SHARE_TENANTS; t++) {
        if (t != tenant && read_claim(&card->tenants[t], false, now_ns, &claim)) {
            return false;
        }
    }
    return true;
}

uint32_t card_share(const struct share_card *card, int tenant, int64_t now_ns)
{
    struct claim claims[SHARE_TENANTS];
    int count = 0, own = 0;
    uint32_t promised = 0;
    for (int t = 0; t < SHARE_TENANTS; t++) {
        if (read_claim(&card->tenants[t], t == tenant, now_ns, &claims[count])) {
            own = t == tenant ? count : own;
            promised += claims[count].least;
            count++;
        }
    }
    if (promised > WHOLE) {
        cut(claims, count, promised);
    } else {
        divide(claims, count, WHOLE - promised);
    }
    uint32_t share = claims[own].share;
    return share < LEAST_PERMILLE ? LEAST_PERMILLE : share;
}
