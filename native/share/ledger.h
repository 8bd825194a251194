/* What this process has allocated: by address or handle, what it was charged, and where. */
#ifndef BATUTA_SHARE_LEDGER_H
#define BATUTA_SHARE_LEDGER_H

#include "share.h"

enum kind { KIND_FREE, KIND_LINEAR, KIND_ARRAY, KIND_MIPMAPPED, KIND_SETTING, KIND_HANDLE, KIND_POOL };

struct entry {
    uint64_t key;
    uint64_t bytes;
    void *owner; /* the context, or the block of memory behind a handle */
    CUdevice device;
    enum kind kind;
};

/* Room for one more entry, so that writing it cannot fail; false when this machine has no memory left. */
bool ledger_expect(void);
/* The entry is not written after all. */
void ledger_forgo(void);
/* Writes an entry that was expected. */
void ledger_put(const struct entry *entry);
bool ledger_take(enum kind kind, uint64_t key, struct entry *taken);
bool ledger_find(enum kind kind, uint64_t key, struct entry *found);
/* Takes the next entry of the context from `*cursor` on, which begins at 0; false when there is none left. Handles and
 * pools belong to none. */
bool ledger_take_next_of(const void *context, size_t *cursor, struct entry *taken);
/* In the child of a fork: it has no memory by handle either. */
void virtual_forget(void);

/*
 * A claim: memory that is reserved while the driver is asked for it.
 *
 *     struct claim_of_memory claim;
 *     if (!claim_begin(&claim, device, context, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
 *     CUresult result = REAL(…)(…);
 *     claim_end(&claim, result, KIND_LINEAR, address);
 */
struct claim_of_memory {
    bool charged;
    CUdevice device;
    void *owner;
    uint64_t bytes;
};

bool claim_begin(struct claim_of_memory *claim, CUdevice device, void *owner, uint64_t bytes);
/* On the device of the current context. Without one the driver refuses by itself, and nothing is charged. */
bool claim_begin_here(struct claim_of_memory *claim, uint64_t bytes);
/* More, when it turns out to be more. False: refused, and the claim is as before. */
bool claim_more(struct claim_of_memory *claim, uint64_t bytes);
/* Notes what was allocated, or gives the claim back. Gives `result`. */
CUresult claim_end(const struct claim_of_memory *claim, CUresult result, enum kind kind, uint64_t key);

/* Drivers give memory in units; this is the least of them. SIZE_MAX / 2 for what no device has. */
uint64_t memory_units(uint64_t bytes);

#endif
