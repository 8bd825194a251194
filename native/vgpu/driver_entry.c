/*
 * Every name of the driver API, and the table of them. What no other file implements is defined here, weakly, and
 * answers that it is not supported. This file knows no types: to it they are all functions without arguments.
 */
#include "driver_entry.h"

#define NOT_SUPPORTED 801

#define STUB(name)                                                                                                    \
    __attribute__((weak, visibility("default"))) int name(void);                                                      \
    int name(void)                                                                                                    \
    {                                                                                                                 \
        return NOT_SUPPORTED;                                                                                         \
    }
#define SYMBOL(base, since, symbol) STUB(symbol)
#define STREAM_SYMBOL(base, since, symbol, per_thread) STUB(symbol) STUB(per_thread)
#define ALSO(base, since, symbol)
#include "cuda_symbols.inc"
#undef SYMBOL
#undef STREAM_SYMBOL
#undef ALSO

const struct driver_name DRIVER_NAMES[] = {
#define SYMBOL(base, since, symbol) {#base, since, symbol, symbol},
#define ALSO(base, since, symbol) {#base, since, symbol, symbol},
#define STREAM_SYMBOL(base, since, symbol, per_thread) {#base, since, symbol, per_thread},
#include "cuda_symbols.inc"
};

const int DRIVER_NAME_COUNT = sizeof DRIVER_NAMES / sizeof *DRIVER_NAMES;
