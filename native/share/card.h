/*
 * The card: a file for each GPU that all containers on it share. Each says in its place what it may have and what it
 * wants; from that each reckons its own part. No lock: a place is written by one container alone.
 */
#ifndef BATUTA_SHARE_CARD_H
#define BATUTA_SHARE_CARD_H

#include "region.h"

struct share_tenant {
    uint64_t key; /* of the container; 0: free */
    uint32_t hard_permille;
    uint32_t soft_permille;
    uint32_t weight;
    uint32_t use_permille; /* device time of late */
    int64_t active_until_ns; /* it wants the device until then */
    int64_t hungry_until_ns; /* it wants more than it has until then */
};

struct share_card {
    uint64_t magic;
    uint32_t layout;
    uint32_t reserved;
    uint64_t size_bytes;
    char uuid[SHARE_UUID];
    struct share_tenant tenants[SHARE_TENANTS];
};

/* Maps the card of a device in the folder, and makes it if it is not there; NULL when that cannot be. */
struct share_card *card_open(const char *folder, const char *uuid);
/* A place for the container, with the lock of its region held; -1 when all are taken. */
int card_enter(struct share_card *card, uint64_t key, int64_t now_ns);
/* Whether no other tenant wants the device. */
bool card_is_alone(const struct share_card *card, int tenant, int64_t now_ns);
/* What the tenant may have of the device now, in permille: its own, and its part of what nobody wants. */
uint32_t card_share(const struct share_card *card, int tenant, int64_t now_ns);

#endif
