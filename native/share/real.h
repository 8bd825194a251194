/* The functions of the driver and of NVML themselves, behind ours. */
#ifndef BATUTA_SHARE_REAL_H
#define BATUTA_SHARE_REAL_H

#include "calls.h"
#include "glibc.h"

#include <stdbool.h>

enum call {
#define HOOK(symbol, base, since) CALL_##symbol,
#define STREAM_HOOK(symbol, base, since) CALL_##symbol, CALL_##symbol##_ptsz,
#define NVML_HOOK(symbol) CALL_##symbol,
#define CALL(symbol) CALL_##symbol,
#define NVML_CALL(symbol) CALL_##symbol,
#include "hooks.inc"
#undef HOOK
#undef STREAM_HOOK
#undef NVML_HOOK
#undef CALL
#undef NVML_CALL
    CALLS
};

/* For functions that run while the program is still being loaded, before a sanitizer has made its own preparations. */
#define EARLY __attribute__((no_sanitize_address))

typedef void (*function)(void);
typedef void *(*dlsym_function)(void *handle, const char *name);

/* The driver's function; one that answers CUDA_ERROR_NOT_FOUND where the driver has none of that name. */
function real_function(enum call call);
/* Whether the driver has it at all. */
bool real_exists(enum call call);
#define REAL(symbol) ((__typeof__(&symbol))real_function(CALL_##symbol))

/* The loader's own dlsym. */
dlsym_function real_dlsym(void);

/* The newest version of CUDA whose functions are all known here. */
enum { NEWEST_CUDA = 13040 };

/* Our function of that name, or NULL. */
function hook_by_name(const char *name);
/* Our function for what cuGetProcAddress(base, version) means; NULL where the library stands before none. */
function hook_by_version(const char *base, int version, bool per_thread);

#endif
