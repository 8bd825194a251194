/* Finding the driver's functions, and which of ours stands before which. */
#define _GNU_SOURCE
#include "real.h"

#include <dlfcn.h>
#include <string.h>

enum library { CUDA, NVML };

struct name {
    const char *symbol;
    const char *base; /* NULL: not to be had through cuGetProcAddress */
    int since;
    bool per_thread; /* also, or only, for callers with a default stream for each thread */
    bool plain;
    enum library library;
    function hook; /* NULL: only called */
};

static const struct name NAMES[CALLS] = {
#define HOOK(symbol, base, since) {#symbol, #base, since, true, true, CUDA, (function)symbol},
#define STREAM_HOOK(symbol, base, since)                                                                              \
    {#symbol, #base, since, false, true, CUDA, (function)symbol},                                                     \
        {#symbol "_ptsz", #base, since, true, false, CUDA, (function)symbol##_ptsz},
#define NVML_HOOK(symbol) {#symbol, NULL, 0, false, false, NVML, (function)symbol},
#define CALL(symbol) {#symbol, NULL, 0, false, false, CUDA, NULL},
#define NVML_CALL(symbol) {#symbol, NULL, 0, false, false, NVML, NULL},
#include "hooks.inc"
};

static const char *const FILES[] = {[CUDA] = "libcuda.so.1", [NVML] = "libnvidia-ml.so.1"};

static function found[CALLS]; /* atomic; NULL: not looked for yet */

static int missing(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

static function as_function(void *address)
{
    function made;
    memcpy(&made, &address, sizeof made);
    return made;
}

EARLY dlsym_function real_dlsym(void)
{
    static dlsym_function loaded;
    static const char *const VERSIONS[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    dlsym_function known = __atomic_load_n(&loaded, __ATOMIC_RELAXED);
    for (size_t v = 0; known == NULL && v < sizeof VERSIONS / sizeof *VERSIONS; v++) {
        void *address = dlvsym(RTLD_NEXT, "dlsym", VERSIONS[v]);
        memcpy(&known, &address, sizeof known);
    }
    __atomic_store_n(&loaded, known, __ATOMIC_RELAXED);
    return known;
}

function real_function(enum call call)
{
    function known = __atomic_load_n(&found[call], __ATOMIC_ACQUIRE);
    if (known != NULL) {
        return known;
    }
    const struct name *name = &NAMES[call];
    void *library = dlopen(FILES[name->library], RTLD_LAZY | RTLD_LOCAL);
    void *address = library == NULL ? NULL : real_dlsym()(library, name->symbol);
    if (library == NULL) {
        return (function)missing; /* it may be there later */
    }
    known = address == NULL ? (function)missing : as_function(address);
    __atomic_store_n(&found[call], known, __ATOMIC_RELEASE);
    return known;
}

bool real_exists(enum call call)
{
    return real_function(call) != (function)missing;
}

function hook_by_name(const char *name)
{
    for (int n = 0; n < CALLS; n++) {
        if (NAMES[n].hook != NULL && strcmp(NAMES[n].symbol, name) == 0) {
            return NAMES[n].hook;
        }
    }
    return NULL;
}

function hook_by_version(const char *base, int version, bool per_thread)
{
    const struct name *best = NULL;
    for (int n = 0; n < CALLS; n++) {
        const struct name *name = &NAMES[n];
        if (name->hook != NULL && name->base != NULL && (per_thread ? name->per_thread : name->plain) &&
            name->since <= version && strcmp(name->base, base) == 0 && (best == NULL || name->since > best->since)) {
            best = name;
        }
    }
    return best == NULL ? NULL : best->hook;
}
