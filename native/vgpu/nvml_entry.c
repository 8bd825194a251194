/* Every name of NVML. What no other file implements is defined here, weakly, and answers that it is not supported. */
#define NOT_SUPPORTED 3

#define SYMBOL(name)                                                                                                  \
    __attribute__((weak, visibility("default"))) int name(void);                                                      \
    int name(void)                                                                                                    \
    {                                                                                                                 \
        return NOT_SUPPORTED;                                                                                         \
    }
#include "nvml_symbols.inc"
