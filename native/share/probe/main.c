/* The commands of the probe. It is run by `batuta share selftest`, by tests and by benchmarks. */
#define _GNU_SOURCE
#include "probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int usage(void)
{
    fprintf(stderr, "entries | launches REGION | load SECONDS LENGTHS_US queued|waiting|changing\n"
                    "| speed launch|alloc|alloc-any COUNT LIVE\n");
    return 2;
}

int main(int count, char **words)
{
    if (count == 2 && strcmp(words[1], "entries") == 0) {
        return probe_entries();
    }
    if (count == 3 && strcmp(words[1], "launches") == 0) {
        return probe_launches(words[2]);
    }
    if (count == 5 && strcmp(words[1], "load") == 0) {
        return probe_load(atof(words[2]), words[3], words[4]);
    }
    if (count == 5 && strcmp(words[1], "speed") == 0) {
        return probe_speed(words[2], atol(words[3]), atol(words[4]));
    }
    return usage();
}
