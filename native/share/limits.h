/* The limits file: which one counts, and what it says. The format is that of src/batuta/gpu/share/limits.py. */
#ifndef BATUTA_SHARE_LIMITS_H
#define BATUTA_SHARE_LIMITS_H

#include "region.h"

#include <sys/stat.h>

/* A file here is the only one that counts. */
#ifndef SHARE_LIMITS_PATH
#define SHARE_LIMITS_PATH "/etc/batuta/share/limits"
#endif
/* Names the file on machines that have none there: for jobs of a user who is not root. */
#define SHARE_LIMITS_VARIABLE "BATUTA_SHARE_LIMITS"

enum { SHARE_PATH = 1024, SHARE_NAME = 64 };

struct limit {
    char uuid[SHARE_UUID];
    uint64_t bytes; /* SHARE_UNLIMITED: all there is */
    uint32_t hard_permille; /* 1000: no hard limit */
    uint32_t soft_permille; /* 0: no soft limit */
    uint32_t weight;
};

struct limits {
    char container[SHARE_NAME];
    char region[SHARE_PATH];
    char cards[SHARE_PATH]; /* empty: none */
    uint32_t count;
    struct limit devices[SHARE_DEVICES];
};

enum limits_result { LIMITS_ABSENT, LIMITS_READ, LIMITS_REFUSED };

/* The path of the file that counts, or NULL. */
const char *limits_path(void);
/* Reads and checks it. What is wrong is said on standard error. `status` tells this file from a later one. */
enum limits_result limits_read(const char *path, struct limits *limits, struct stat *status);
/* Why a file does not count, by who owns it and who may write it; NULL when it does. `own_counts`: one of the user of
 * this process counts like one of root's. */
const char *limits_distrust(const struct stat *status, bool own_counts);
/* Whether two UUIDs are the same, whatever they begin with: GPU- or MIG-. */
bool limits_same_uuid(const char *one, const char *other);

#endif
