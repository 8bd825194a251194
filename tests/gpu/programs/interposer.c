/* Loaded before libcuda, it gets every call that goes through a symbol, and counts them. It answers nothing useful. */
#include <stdio.h>

static int calls;

int cuMemAllocFromPoolAsync(void);
int cuMemAllocFromPoolAsync(void)
{
    calls++;
    return 999;
}

__attribute__((destructor)) static void report(void)
{
    printf("intercepted inside: %d\n", calls);
}
