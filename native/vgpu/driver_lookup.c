/* How callers find functions: by name and the version of CUDA that they were made for, or as tables by UUID. */
#define _GNU_SOURCE
#include "driver.h"
#include "driver_entry.h"

#include <string.h>

API CUresult cuGetProcAddress_v2(const char *base, void **found, int version, uint64_t flags, int *status)
{
    if (base == NULL || found == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const struct driver_name *best = NULL;
    bool known = false;
    for (int n = 0; n < DRIVER_NAME_COUNT; n++) {
        const struct driver_name *name = &DRIVER_NAMES[n];
        if (strcmp(name->base, base) != 0) {
            continue;
        }
        known = true;
        if (name->since <= version && (best == NULL || name->since > best->since)) {
            best = name;
        }
    }
    int (*function)(void) = NULL;
    if (best != NULL) {
        bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
        function = per_thread ? best->per_thread : best->symbol;
    }
    memcpy(found, &function, sizeof function);
    if (status != NULL) {
        *status = best != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known      ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                               : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    return best != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API CUresult cuGetProcAddress(const char *base, void **found, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(base, found, version, flags, NULL);
}

/* Only the runtime API (libcudart) asks for tables, and no document describes them, so that it cannot work here. It hands
 * this code on to its callers: frameworks like PyTorch then know that there is no GPU for them, and use the CPU, where
 * any other code would be a fault of the driver that they report and die of. */
API CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    (void)id;
    if (table == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *table = NULL;
    return CUDA_ERROR_NO_DEVICE;
}
