/* The file of the device model: mapping it, its lock, memory accounts. */
#define _GNU_SOURCE
#include "model.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(pthread_mutex_t) <= 64, "the lock has 64 bytes in the file");
_Static_assert((VGPU_RUNS & (VGPU_RUNS - 1)) == 0, "run numbers are taken modulo the ring's size");

uint64_t vgpu_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * VGPU_SECOND_NS + (uint64_t)now.tv_nsec;
}

void vgpu_sleep_until(uint64_t moment_ns)
{
    struct timespec moment = {(time_t)(moment_ns / VGPU_SECOND_NS), (long)(moment_ns % VGPU_SECOND_NS)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &moment, NULL) == EINTR) {
    }
}

static enum vgpu_open_result check(const char *path, const struct vgpu_file *file, uint64_t size_bytes)
{
    if (size_bytes < offsetof(struct vgpu_file, lock) || file->magic != VGPU_MAGIC) {
        fprintf(stderr, "batuta vgpu: %s is not a virtual GPU (make one: batuta vgpu create)\n", path);
        return VGPU_UNREADABLE;
    }
    if (file->layout != VGPU_LAYOUT) {
        fprintf(stderr, "batuta vgpu: %s has layout %u, this library reads %u (make it again: batuta vgpu create)\n",
                path, file->layout, VGPU_LAYOUT);
        return VGPU_WRONG_LAYOUT;
    }
    if (size_bytes != sizeof *file || file->size_bytes != sizeof *file || file->devices_count > VGPU_DEVICES) {
        fprintf(stderr, "batuta vgpu: %s is damaged: %llu bytes where %zu belong\n", path,
                (unsigned long long)size_bytes, sizeof *file);
        return VGPU_UNREADABLE;
    }
    return VGPU_OPENED;
}

enum vgpu_open_result vgpu_open(struct vgpu_file **file)
{
    const char *path = getenv("BATUTA_VGPU");
    if (path == NULL || *path == '\0') {
        return VGPU_ABSENT;
    }
    int descriptor = open(path, O_RDWR | O_CLOEXEC);
    struct stat status;
    if (descriptor < 0 || fstat(descriptor, &status) != 0) {
        fprintf(stderr, "batuta vgpu: cannot open %s, which BATUTA_VGPU names\n", path);
        if (descriptor >= 0) {
            close(descriptor);
        }
        return VGPU_UNREADABLE;
    }
    size_t size_bytes = (size_t)status.st_size;
    void *mapped = MAP_FAILED;
    if (size_bytes > 0) {
        mapped = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    }
    close(descriptor);
    if (mapped == MAP_FAILED) {
        fprintf(stderr, "batuta vgpu: cannot map %s\n", path);
        return VGPU_UNREADABLE;
    }
    enum vgpu_open_result result = check(path, mapped, size_bytes);
    if (result == VGPU_OPENED) {
        *file = mapped;
    } else {
        munmap(mapped, size_bytes);
    }
    return result;
}

/*
 * What one process has is written by itself alone, or by whoever frees its slot. So after a death in the middle of
 * anything the slots of the living are right, and all sums follow from them.
 */
static void repair(struct vgpu_file *file)
{
    vgpu_reap(file);
    for (uint32_t d = 0; d < file->devices_count; d++) {
        uint64_t used_bytes = 0;
        for (uint32_t p = 0; p < VGPU_PROCESSES; p++) {
            if (file->processes[p].taken) {
                used_bytes += file->processes[p].use[d].used_bytes;
            }
        }
        file->devices[d].used_bytes = used_bytes;
    }
    file->repairs++;
    file->damaged = 0;
}

void vgpu_lock(struct vgpu_file *file)
{
    int result = pthread_mutex_lock(&file->lock.mutex);
    if (result == EOWNERDEAD) {
        pthread_mutex_consistent(&file->lock.mutex);
        file->damaged = 1;
    } else if (result != 0) {
        fprintf(stderr, "batuta vgpu: the lock of the device file is broken (error %d)\n", result);
        abort();
    }
    if (file->damaged) {
        repair(file);
    }
}

void vgpu_unlock(struct vgpu_file *file)
{
    pthread_mutex_unlock(&file->lock.mutex);
}

bool vgpu_take(struct vgpu_file *file, uint32_t process, uint32_t device, uint64_t bytes)
{
    struct vgpu_device *on = &file->devices[device];
    if (bytes > on->memory_bytes) {
        return false;
    }
    if (on->used_bytes + bytes > on->memory_bytes) {
        vgpu_reap(file);
    }
    if (on->used_bytes + bytes > on->memory_bytes) {
        return false;
    }
    struct vgpu_use *use = &file->processes[process].use[device];
    use->used_bytes += bytes;
    if (use->used_bytes > use->peak_bytes) {
        use->peak_bytes = use->used_bytes;
    }
    on->used_bytes += bytes;
    return true;
}

void vgpu_give_back(struct vgpu_file *file, uint32_t process, uint32_t device, uint64_t bytes)
{
    file->processes[process].use[device].used_bytes -= bytes;
    file->devices[device].used_bytes -= bytes;
}
