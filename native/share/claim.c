/* Claims: what is reserved while the driver is asked. Killed in between, a process leaves them to be reaped. */
#define _GNU_SOURCE
#include "ledger.h"

enum { UNIT = 512 };

uint64_t memory_units(uint64_t bytes)
{
    return bytes > SIZE_MAX / 2 ? SIZE_MAX / 2 : (bytes + UNIT - 1) / UNIT * UNIT;
}

bool claim_begin(struct claim_of_memory *claim, CUdevice device, void *owner, uint64_t bytes)
{
    *claim = (struct claim_of_memory){.device = device, .owner = owner, .bytes = memory_units(bytes)};
    enum mode mode = share_mode();
    if (mode != MODE_ON) {
        return mode == MODE_OFF;
    }
    share_refresh(share_now_ns());
    if (!ledger_expect()) {
        return false;
    }
    claim->charged = share_reserve(device, claim->bytes);
    if (!claim->charged) {
        ledger_forgo();
    }
    return claim->charged;
}

bool claim_begin_here(struct claim_of_memory *claim, uint64_t bytes)
{
    CUcontext context = NULL;
    CUdevice device;
    if (share_mode() == MODE_ON &&
        (!share_stream_context(NULL, &context) || !share_context_device(context, &device))) {
        *claim = (struct claim_of_memory){.charged = false};
        return true;
    }
    return claim_begin(claim, device, context, bytes);
}

bool claim_more(struct claim_of_memory *claim, uint64_t bytes)
{
    uint64_t wanted = memory_units(bytes);
    if (!claim->charged || wanted <= claim->bytes) {
        return true;
    }
    if (!share_reserve(claim->device, wanted - claim->bytes)) {
        return false;
    }
    claim->bytes = wanted;
    return true;
}

CUresult claim_end(const struct claim_of_memory *claim, CUresult result, enum kind kind, uint64_t key)
{
    if (!claim->charged) {
        return result;
    }
    if (result == CUDA_SUCCESS) {
        struct entry entry = {key, claim->bytes, claim->owner, claim->device, kind};
        ledger_put(&entry);
    } else {
        share_give_back(claim->device, claim->bytes);
        ledger_forgo();
    }
    return result;
}
