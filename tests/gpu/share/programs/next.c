/* A library that wraps a function, as many do: it asks for the next one of that name, and must not get itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int puts(const char *text)
{
    int (*next)(const char *) = (int (*)(const char *))dlsym(RTLD_NEXT, "puts");
    if (next == puts) {
        return -1;
    }
    next("wrapped");
    return next(text);
}
