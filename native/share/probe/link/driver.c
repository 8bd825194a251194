/* The names of the driver, for the linker only: the probe is linked with them as a program is with libcuda. What it
 * finds behind them when it runs is the driver, or whoever is loaded before it. */
#define HOOK(symbol, base, since) NAME(symbol)
#define STREAM_HOOK(symbol, base, since) NAME(symbol) NAME(symbol##_ptsz)
#define NVML_HOOK(symbol)
#define CALL(symbol)
#define NVML_CALL(symbol)
#define NAME(symbol)                                                                                                  \
    __attribute__((visibility("default"))) void symbol(void);                                                         \
    void symbol(void)                                                                                                 \
    {                                                                                                                 \
    }
#include "hooks.inc"
