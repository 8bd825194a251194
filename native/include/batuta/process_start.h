/* Which process a pid is: pids are used again, a pid with the time of its start is one process for good. */
#ifndef BATUTA_PROCESS_START_H
#define BATUTA_PROCESS_START_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* When the process started, in ticks since boot; 0 when it is gone. One that nobody has waited for yet is gone. */
static inline uint64_t start_ticks(int pid)
{
    char path[32];
    char text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
        return 0;
    }
    ssize_t length = read(descriptor, text, sizeof text - 1);
    close(descriptor);
    if (length <= 0) {
        return 0;
    }
    text[length] = '\0';
    /* The name stands in parentheses and may hold anything, parentheses too: what follows the last one counts. */
    const char *field = strrchr(text, ')');
    if (field == NULL || field[1] == '\0' || field[2] == 'Z' || field[2] == 'X') {
        return 0;
    }
    field += 2;
    for (int skipped = 3; skipped < 22; skipped++) {
        field = strchr(field, ' ');
        if (field == NULL) {
            return 0;
        }
        field++;
    }
    return strtoull(field, NULL, 10);
}

#endif
