/*
 * Device time. A device runs one kernel at a time, in the order in which they were launched, whoever launched them.
 * When a kernel is launched its start and its end are known at once, so that nothing has to run in the background:
 * the accounts are settled up to now whenever somebody looks.
 */
#define _GNU_SOURCE
#include "model.h"

#include <string.h>

static struct vgpu_run *run_at(struct vgpu_device *device, uint64_t number)
{
    return &device->runs[number % VGPU_RUNS];
}

static struct vgpu_bucket *bucket_of(struct vgpu_device *device, uint64_t number)
{
    struct vgpu_bucket *bucket = &device->buckets[number % VGPU_BUCKETS];
    if (bucket->number != number) {
        memset(bucket, 0, sizeof *bucket);
        bucket->number = number;
    }
    return bucket;
}

static struct vgpu_share *share_of(struct vgpu_use *use, uint64_t number)
{
    struct vgpu_share *share = &use->shares[number % VGPU_BUCKETS];
    if (share->number != number) {
        share->number = number;
        share->busy_ns = 0;
    }
    return share;
}

static void account(struct vgpu_device *device, struct vgpu_use *use, uint64_t from_ns, uint64_t until_ns)
{
    device->busy_ns += until_ns - from_ns;
    use->busy_ns += until_ns - from_ns;
    /* What lies further back than the buckets reach has no bucket any more. */
    uint64_t reach_ns = VGPU_BUCKET_NS * VGPU_BUCKETS;
    if (until_ns - from_ns > reach_ns) {
        from_ns = until_ns - reach_ns;
    }
    while (from_ns < until_ns) {
        uint64_t number = from_ns / VGPU_BUCKET_NS;
        uint64_t edge_ns = (number + 1) * VGPU_BUCKET_NS;
        uint64_t end_ns = edge_ns < until_ns ? edge_ns : until_ns;
        bucket_of(device, number)->busy_ns += end_ns - from_ns;
        share_of(use, number)->busy_ns += end_ns - from_ns;
        from_ns = end_ns;
    }
}

void vgpu_settle(struct vgpu_file *file, uint32_t index, uint64_t now_ns)
{
    struct vgpu_device *device = &file->devices[index];
    uint64_t since_ns = device->settled_ns;
    if (since_ns > now_ns + VGPU_SECOND_NS) {
        since_ns = now_ns; /* the machine was started anew, and its clock too */
    } else if (now_ns <= since_ns) {
        return;
    }
    /* First the mark, then the sums: a settler that is killed may lose a stretch, but it is never counted twice. */
    device->settled_ns = now_ns;
    while (device->first_run != device->next_run) {
        const struct vgpu_run *run = run_at(device, device->first_run);
        uint64_t from_ns = run->start_ns > since_ns ? run->start_ns : since_ns;
        uint64_t until_ns = run->end_ns < now_ns ? run->end_ns : now_ns;
        bool over = run->end_ns <= now_ns;
        if (over) {
            device->first_run++;
        }
        if (from_ns < until_ns) {
            account(device, &file->processes[run->process].use[index], from_ns, until_ns);
        }
        if (!over) {
            break;
        }
    }
}

uint64_t vgpu_enqueue(struct vgpu_file *file, uint32_t process, uint32_t index, uint64_t not_before_ns,
                      uint64_t length_ns)
{
    struct vgpu_device *device = &file->devices[index];
    uint64_t now_ns = vgpu_now_ns();
    vgpu_settle(file, index, now_ns);
    uint64_t start_ns = now_ns > not_before_ns ? now_ns : not_before_ns;
    if (device->busy_until_ns > start_ns) {
        start_ns = device->busy_until_ns;
    }
    uint64_t end_ns = start_ns + length_ns;
    struct vgpu_run *last = run_at(device, device->next_run - 1);
    bool follows = device->first_run != device->next_run && last->process == process && last->end_ns == start_ns;
    if (follows) {
        last->end_ns = end_ns;
        last->launches++;
    } else {
        if (device->next_run - device->first_run == VGPU_RUNS) {
            return 0;
        }
        *run_at(device, device->next_run) = (struct vgpu_run){start_ns, end_ns, process, 1};
        __atomic_store_n(&device->next_run, device->next_run + 1, __ATOMIC_RELEASE);
    }
    device->busy_until_ns = end_ns;
    device->launches++;
    file->processes[process].use[index].launches++;
    return end_ns;
}

void vgpu_drop_runs(struct vgpu_file *file, uint32_t index, uint32_t process, uint64_t now_ns)
{
    struct vgpu_device *device = &file->devices[index];
    vgpu_settle(file, index, now_ns);
    uint64_t busy_until_ns = 0;
    for (uint64_t number = device->first_run; number != device->next_run; number++) {
        struct vgpu_run *run = run_at(device, number);
        if (run->process == process) {
            run->end_ns = 0; /* over before it began */
        }
        if (run->end_ns > busy_until_ns) {
            busy_until_ns = run->end_ns;
        }
    }
    device->busy_until_ns = busy_until_ns;
}

void vgpu_count_copy(struct vgpu_device *device, uint64_t now_ns, uint64_t received_bytes, uint64_t sent_bytes)
{
    struct vgpu_bucket *bucket = bucket_of(device, now_ns / VGPU_BUCKET_NS);
    bucket->received_bytes += received_bytes;
    bucket->sent_bytes += sent_bytes;
}

static uint32_t permille(uint64_t busy_ns, uint64_t now_ns)
{
    uint64_t window_ns = VGPU_WINDOW_BUCKETS * VGPU_BUCKET_NS + now_ns % VGPU_BUCKET_NS;
    uint64_t share = (busy_ns * 1000 + window_ns / 2) / window_ns;
    return share > 1000 ? 1000 : (uint32_t)share;
}

uint32_t vgpu_busy_permille(const struct vgpu_device *device, uint64_t now_ns)
{
    uint64_t last = now_ns / VGPU_BUCKET_NS;
    uint64_t busy_ns = 0;
    for (uint32_t b = 0; b < VGPU_BUCKETS; b++) {
        if (device->buckets[b].number + VGPU_WINDOW_BUCKETS >= last) {
            busy_ns += device->buckets[b].busy_ns;
        }
    }
    return permille(busy_ns, now_ns);
}

uint32_t vgpu_share_permille(const struct vgpu_use *use, uint64_t now_ns)
{
    uint64_t last = now_ns / VGPU_BUCKET_NS;
    uint64_t busy_ns = 0;
    for (uint32_t b = 0; b < VGPU_BUCKETS; b++) {
        if (use->shares[b].number + VGPU_WINDOW_BUCKETS >= last) {
            busy_ns += use->shares[b].busy_ns;
        }
    }
    return permille(busy_ns, now_ns);
}
