/* The file of the region: making and mapping it, its lock, memory accounts. */
#define _GNU_SOURCE
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(pthread_mutex_t) <= 64, "the lock has 64 bytes in the file");

int64_t share_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * SHARE_SECOND_NS + now.tv_nsec;
}

int64_t elapsed_ns(int64_t now_ns, int64_t before_ns)
{
    int64_t passed_ns;
    if (__builtin_sub_overflow(now_ns, before_ns, &passed_ns) || passed_ns == INT64_MIN) {
        return before_ns < 0 ? INT64_MAX : -INT64_MAX;
    }
    return passed_ns;
}

uint32_t region_devices(const struct share_region *region)
{
    uint32_t count = __atomic_load_n(&region->devices_count, __ATOMIC_RELAXED);
    return count < SHARE_DEVICES ? count : SHARE_DEVICES;
}

void region_uuid(const struct share_region *region, uint32_t device, char uuid[SHARE_UUID])
{
    memcpy(uuid, region->devices[device].uuid, SHARE_UUID);
    uuid[SHARE_UUID - 1] = '\0';
}

static void prepare(struct share_region *region)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&region->lock.mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

/* With the lock of the file held. A maker that was killed left no magic: whoever comes next makes it again. */
static struct share_region *map_or_make(int descriptor, const char **why)
{
    struct stat status;
    const size_t size_bytes = sizeof(struct share_region);
    if (fstat(descriptor, &status) != 0 || (status.st_size == 0 && ftruncate(descriptor, (off_t)size_bytes) != 0)) {
        *why = strerror(errno);
        return NULL;
    }
    if (status.st_size != 0 && (size_t)status.st_size != size_bytes) {
        *why = "it has another size than this version writes; remove it when no process of the container runs";
        return NULL;
    }
    struct share_region *mapped = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (mapped == MAP_FAILED) {
        *why = strerror(errno);
        return NULL;
    }
    region_guard(mapped);
    if (mapped->magic == 0) {
        memset(mapped, 0, size_bytes);
        prepare(mapped);
        mapped->layout = SHARE_LAYOUT;
        mapped->size_bytes = size_bytes;
        __atomic_store_n(&mapped->magic, SHARE_REGION_MAGIC, __ATOMIC_RELEASE);
    }
    if (mapped->magic == SHARE_REGION_MAGIC && mapped->layout == SHARE_LAYOUT && mapped->size_bytes == size_bytes) {
        return mapped;
    }
    *why = "something else is in it, or another version wrote it";
    region_guard(NULL);
    munmap(mapped, size_bytes);
    return NULL;
}

/*
 * Opens the file, or makes it. Containers run processes of several users; who may come here at all is said by the
 * folder. One that is there is never opened as if it were to be made: in folders like /tmp the kernel refuses that to
 * all but its owner.
 */
static int open_or_make(const char *path)
{
    const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;
    int descriptor = open(path, flags);
    if (descriptor < 0 && errno == ENOENT) {
        descriptor = open(path, flags | O_CREAT | O_EXCL, 0666);
        if (descriptor >= 0) {
            (void)!fchmod(descriptor, 0666); /* whatever the umask says */
        } else if (errno == EEXIST) {
            descriptor = open(path, flags); /* somebody was faster */
        }
    }
    return descriptor;
}

struct share_region *region_open(const char *path)
{
    const char *why = NULL;
    struct share_region *mapped = NULL;
    int descriptor = open_or_make(path);
    if (descriptor < 0 || flock(descriptor, LOCK_EX) != 0) {
        why = strerror(errno);
    } else {
        mapped = map_or_make(descriptor, &why);
    }
    if (descriptor >= 0) {
        (void)flock(descriptor, LOCK_UN); /* by itself: closing does not while the mapping holds the open file */
        close(descriptor);
    }
    if (mapped == NULL) {
        fprintf(stderr, "batuta share: cannot use %s: %s\n", path, why);
    }
    return mapped;
}

/*
 * What one process has is written by itself alone, or by whoever frees its slot. So after a death in the middle of
 * anything the slots of the living are right, and all sums follow from them.
 */
static void repair(struct share_region *region)
{
    region_reap(region);
    for (uint32_t d = 0; d < region_devices(region); d++) {
        uint64_t used_bytes = 0;
        for (uint32_t p = 0; p < SHARE_PROCESSES; p++) {
            if (region->processes[p].taken) {
                used_bytes += region->processes[p].use[d].used_bytes;
            }
        }
        region->devices[d].used_bytes = used_bytes;
    }
    region->repairs++;
    region->damaged = 0;
}

bool region_lock(struct share_region *region)
{
    int result = pthread_mutex_lock(&region->lock.mutex);
    if (result == EOWNERDEAD) {
        region->damaged = 1;
        pthread_mutex_consistent(&region->lock.mutex);
    } else if (result != 0) {
        fprintf(stderr, "batuta share: the lock of the region is broken: %s\n", strerror(result));
        return false;
    }
    if (region->damaged) {
        repair(region);
    }
    return true;
}

void region_unlock(struct share_region *region)
{
    pthread_mutex_unlock(&region->lock.mutex);
}

int region_device(struct share_region *region, const char *uuid)
{
    uint32_t count = region_devices(region);
    for (uint32_t d = 0; d < count; d++) {
        char known[SHARE_UUID];
        region_uuid(region, d, known);
        if (strcmp(known, uuid) == 0) {
            return (int)d;
        }
    }
    if (count == SHARE_DEVICES) {
        return -1;
    }
    struct share_device *device = &region->devices[count];
    memset(device, 0, sizeof *device);
    strncpy(device->uuid, uuid, SHARE_UUID - 1);
    device->factor_permille = 1000;
    device->rate_permille = 1000;
    region->devices_count = count + 1;
    return (int)count;
}

bool region_take(struct share_region *region, uint32_t process, uint32_t device, uint64_t bytes, uint64_t limit_bytes)
{
    struct share_device *on = &region->devices[device];
    for (int attempt = 0; on->used_bytes > limit_bytes || bytes > limit_bytes - on->used_bytes; attempt++) {
        if (attempt == 1) {
            on->refusals++;
            return false;
        }
        region_reap(region);
    }
    struct share_use *use = &region->processes[process].use[device];
    use->used_bytes += bytes;
    on->used_bytes += bytes;
    if (use->used_bytes > use->peak_bytes) {
        use->peak_bytes = use->used_bytes;
    }
    if (on->used_bytes > on->peak_bytes) {
        on->peak_bytes = on->used_bytes;
    }
    return true;
}

void region_give_back(struct share_region *region, uint32_t process, uint32_t device, uint64_t bytes)
{
    region->processes[process].use[device].used_bytes -= bytes;
    region->devices[device].used_bytes -= bytes;
}
