/*
 * The card: what the containers on one GPU were granted, and what each of them wants.
 *
 * Grants are in one file for each GPU, which the device plugin or the server writes and containers only read. What a
 * container wants is in a file of its own, which it alone may write, and which lies beside that of the GPU. All of them
 * are copied with read() and checked, and never mapped: a file that another tenant cuts off or fills with nonsense says
 * nothing about that tenant, and does no harm to its readers. A want turns a grant on or off; it cannot make it larger.
 */
#ifndef BATUTA_SHARE_CARD_H
#define BATUTA_SHARE_CARD_H

#include "region.h"

/* What a container was granted. */
struct share_tenant {
    uint64_t key; /* of the container */
    uint32_t hard_permille;
    uint32_t soft_permille;
    uint32_t weight;
    uint32_t reserved;
};

struct share_card {
    uint64_t magic;
    uint32_t layout;
    uint32_t count; /* tenants */
    uint64_t size_bytes;
    char uuid[SHARE_UUID];
    struct share_tenant tenants[SHARE_TENANTS];
};

/* What a container wants: the file GPU.KEY, with the key as 16 hexadecimal digits. */
struct share_demand {
    uint64_t magic;
    uint32_t layout;
    uint32_t use_permille; /* device time of late */
    int64_t active_until_ns; /* it wants the device until then */
    int64_t hungry_until_ns; /* it wants more than it has until then */
};

/* Copies of all that, as this process read them last. */
struct card_view {
    int own; /* the container's place among the tenants; -1: it was granted nothing here */
    uint32_t count;
    struct share_tenant tenants[SHARE_TENANTS];
    struct share_demand demands[SHARE_TENANTS];
    int64_t granted_ns; /* when the grants were read */
    int64_t wanted_ns;  /* when the demands were */
    int64_t published_ns;
};

/* Takes the view of a place for this thread alone, brought up to date; NULL when another thread has it. */
struct card_view *card_view_take(int place, int64_t now_ns);
void card_view_return(int place);
/* Tells the others what this container wants. With the view taken. */
void card_publish(int place, struct card_view *view, const struct share_demand *demand, int64_t now_ns);
/* In the child of a fork. */
void card_after_fork(void);

/* Whether no other tenant wants the device. */
bool card_is_alone(const struct card_view *view, int64_t now_ns);
/* What the container may have of the device now, in permille: its own, and its part of what no other tenant wants. */
uint32_t card_share(const struct card_view *view, int64_t now_ns);

#endif
