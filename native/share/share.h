/* Inside the library: what this process knows of its limits, and what it has of each device. */
#ifndef BATUTA_SHARE_SHARE_H
#define BATUTA_SHARE_SHARE_H

#include "card.h"
#include "limits.h"
#include "real.h"
#include "region.h"

enum mode {
    MODE_OFF,    /* no limits are set: the library only passes on */
    MODE_ON,
    MODE_BROKEN, /* there are limits, and they cannot be held to: every allocation is refused */
};

/* A device of the region, as this process limits it. Atomic: the limits file may change. */
struct place {
    uint64_t limit_bytes;
    uint32_t hard_permille;
    uint32_t soft_permille;
    uint32_t weight;
    bool has_card; /* false: nobody else is asked */
    char uuid[SHARE_UUID]; /* set before has_card */
};

struct share {
    struct share_region *region;
    uint64_t key; /* of the container, on the cards */
    char cards[SHARE_PATH]; /* the folder of the cards, set before any has_card */
    struct place places[SHARE_DEVICES];
};

extern struct share share;

/* Reads the limits and opens the region, at the first call. */
enum mode share_mode(void);
/* Heeds the limits file if it was replaced; looks at most twice a second. */
void share_refresh(int64_t now_ns);
/* The slot of this process, taken now if it had none; -1 when there is no room. With the lock held. */
int share_process(void);
/* The same without taking one. */
int share_known_process(void);

enum { NOT_GIVEN = -1 };

/* The place in the region of a device by its UUID, or NOT_GIVEN. */
int share_place_of_uuid(const char *uuid);
/* The same by the driver's number for it. */
int share_place(CUdevice device);
/* The device of a context. False when the driver does not know it. */
bool share_context_device(CUcontext context, CUdevice *device);
/* The context that a stream works in. */
bool share_stream_context(CUstream stream, CUcontext *context);
/* A context is gone, and its handle may come back as another. */
void share_forget_context(void);

/* Memory on a device, reserved before the driver is asked for it. False: refused. */
bool share_reserve(CUdevice device, uint64_t bytes);
void share_give_back(CUdevice device, uint64_t bytes);
/* What the container may have and has; false when the device has no limit. */
bool share_memory(int place, uint64_t *limit_bytes, uint64_t *used_bytes);

#endif
