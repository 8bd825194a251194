/* What each container on a card may have of its time, from what all of them were granted and want. */
#define _GNU_SOURCE
#include "card.h"

/* A tenant that wants the device for longer than this says nonsense. */
#define MOST_AHEAD_NS (60 * SHARE_SECOND_NS)
/* A tenant that is not held back wants what it uses, and room to grow. */
enum { GROWTH_PERCENT = 125, GROWTH_PERMILLE = 20, LEAST_PERMILLE = 10, WHOLE = 1000 };

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

/* What a tenant claims; false when it wants nothing now. The one who asks wants all it can get. */
static bool read_claim(const struct card_view *view, int t, int64_t now_ns, struct claim *claim)
{
    const struct share_tenant *tenant = &view->tenants[t];
    const struct share_demand *demand = &view->demands[t];
    bool own = t == view->own;
    if (!own && (demand->active_until_ns < now_ns || demand->active_until_ns > now_ns + MOST_AHEAD_NS)) {
        return false;
    }
    uint32_t wanted = WHOLE;
    if (!own && demand->hungry_until_ns < now_ns) {
        wanted = smaller(smaller(demand->use_permille, WHOLE) * GROWTH_PERCENT / 100 + GROWTH_PERMILLE, WHOLE);
    }
    uint32_t hard = tenant->hard_permille, soft = tenant->soft_permille;
    /* A hard limit alone is also what the container may count on. */
    claim->least = smaller(soft != 0 ? soft : hard < WHOLE ? hard : 0, wanted);
    claim->most = smaller(hard, wanted);
    claim->is_soft = soft != 0;
    claim->weight = tenant->weight;
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

bool card_is_alone(const struct card_view *view, int64_t now_ns)
{
    struct claim claim;
    for (int t = 0; t < (int)view->count; t++) {
        if (t != view->own && read_claim(view, t, now_ns, &claim)) {
            return false;
        }
    }
    return true;
}

uint32_t card_share(const struct card_view *view, int64_t now_ns)
{
    struct claim claims[SHARE_TENANTS];
    int count = 0, own = 0;
    uint32_t promised = 0;
    for (int t = 0; t < (int)view->count; t++) {
        if (read_claim(view, t, now_ns, &claims[count])) {
            own = t == view->own ? count : own;
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
