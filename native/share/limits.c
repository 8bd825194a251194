/*
 * Reading the limits file.
 *
 * Which file counts is not for the limited to choose. If there is one at SHARE_LIMITS_PATH, only that one counts; it
 * has to belong to root, and nobody else may write it. Only where there is none may a variable of the environment name
 * another, which has to belong to root or to the user of the process, and again nobody else may write it. A file that
 * breaks the rule is refused, and with it every allocation: a mistake must not lift the limits.
 */
#define _GNU_SOURCE
#include "limits.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { LINE = SHARE_PATH + 64 };

const char *limits_path(void)
{
    struct stat status;
    if (stat(SHARE_LIMITS_PATH, &status) == 0 || errno != ENOENT) {
        return SHARE_LIMITS_PATH;
    }
    const char *named = secure_getenv(SHARE_LIMITS_VARIABLE);
    return named == NULL || *named == '\0' ? NULL : named;
}

const char *limits_distrust(const struct stat *status, bool own_counts)
{
    if (!S_ISREG(status->st_mode)) {
        return "it is not a file";
    }
    if ((status->st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        return "others than its owner may write it";
    }
    return status->st_uid == 0 || (own_counts && status->st_uid == getuid()) ? NULL : "it does not belong to root";
}

static bool copy(char *to, size_t room, const char *from)
{
    size_t length = strlen(from);
    if (length == 0 || length >= room) {
        return false;
    }
    memcpy(to, from, length + 1);
    return true;
}

static bool number(const char *text, uint64_t least, uint64_t most, uint64_t *value)
{
    char *end;
    if (*text < '0' || *text > '9') {
        return false;
    }
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' && *value >= least && *value <= most;
}

/* One `name=value` of a device. */
static bool read_setting(struct limit *limit, const char *name, const char *value)
{
    uint64_t found = 0;
    if (strcmp(name, "memory_mib") == 0 && number(value, 0, 1 << 30, &found)) {
        limit->bytes = found << 20;
    } else if (strcmp(name, "compute_percent") == 0 && number(value, 1, 100, &found)) {
        limit->hard_permille = (uint32_t)found * 10;
    } else if (strcmp(name, "soft_compute_percent") == 0 && number(value, 1, 100, &found)) {
        limit->soft_permille = (uint32_t)found * 10;
    } else if (strcmp(name, "weight") == 0 && number(value, 1, 10000, &found)) {
        limit->weight = (uint32_t)found;
    } else {
        return false;
    }
    return true;
}

static bool read_device(struct limits *limits, char *text)
{
    char *rest = NULL;
    const char *uuid = strtok_r(text, " ", &rest);
    if (uuid == NULL || limits->count == SHARE_DEVICES) {
        return false;
    }
    struct limit *limit = &limits->devices[limits->count];
    *limit = (struct limit){.bytes = SHARE_UNLIMITED, .hard_permille = 1000, .weight = 100};
    if (!copy(limit->uuid, sizeof limit->uuid, uuid)) {
        return false;
    }
    for (char *word = strtok_r(NULL, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        if (value == NULL) {
            return false;
        }
        *value++ = '\0';
        if (!read_setting(limit, word, value)) {
            return false;
        }
    }
    limits->count++;
    return limit->soft_permille <= limit->hard_permille;
}

static bool read_line(struct limits *limits, char *line)
{
    char *value = strchr(line, ' ');
    if (value == NULL) {
        return *line == '\0';
    }
    *value++ = '\0';
    if (strcmp(line, "device") == 0) {
        return read_device(limits, value);
    }
    if (strcmp(line, "container") == 0) {
        return copy(limits->container, sizeof limits->container, value);
    }
    if (strcmp(line, "region") == 0) {
        return *value == '/' && copy(limits->region, sizeof limits->region, value);
    }
    return strcmp(line, "cards") == 0 && *value == '/' && copy(limits->cards, sizeof limits->cards, value);
}

static bool read_all(FILE *file, struct limits *limits, int *line_number)
{
    char line[LINE];
    memset(limits, 0, sizeof *limits);
    for (*line_number = 1; fgets(line, sizeof line, file) != NULL; ++*line_number) {
        size_t length = strcspn(line, "\n");
        if (length == sizeof line - 1) {
            return false;
        }
        line[length] = '\0';
        if (*line_number == 1 ? strcmp(line, "batuta-share 1") != 0 : !read_line(limits, line)) {
            return false;
        }
    }
    return *limits->region != '\0';
}

enum limits_result limits_read(const char *path, struct limits *limits, struct stat *status)
{
    FILE *file = fopen(path, "re");
    if (file == NULL || fstat(fileno(file), status) != 0) {
        fprintf(stderr, "batuta share: cannot read the limits in %s: %s\n", path, strerror(errno));
        if (file != NULL) {
            fclose(file);
        }
        return LIMITS_REFUSED;
    }
    const char *why = limits_distrust(status, strcmp(path, SHARE_LIMITS_PATH) != 0);
    int line = 0;
    bool read = why == NULL && read_all(file, limits, &line);
    fclose(file);
    if (why != NULL) {
        fprintf(stderr, "batuta share: the limits in %s are refused: %s\n", path, why);
    } else if (!read) {
        fprintf(stderr, "batuta share: the limits in %s are refused: line %d cannot be read\n", path, line);
    }
    return read ? LIMITS_READ : LIMITS_REFUSED;
}

bool limits_same_uuid(const char *one, const char *other)
{
    const char *prefixes[] = {one, other};
    for (int p = 0; p < 2; p++) {
        if (strncasecmp(prefixes[p], "GPU-", 4) == 0 || strncasecmp(prefixes[p], "MIG-", 4) == 0) {
            prefixes[p] += 4;
        }
    }
    return strcasecmp(prefixes[0], prefixes[1]) == 0;
}
