/* Who uses the devices: a slot for each process, freed when it is gone. */
#define _GNU_SOURCE
#include "model.h"

#include <batuta/process_start.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void free_slot(struct vgpu_file *file, uint32_t process)
{
    struct vgpu_process *slot = &file->processes[process];
    uint64_t now_ns = vgpu_now_ns();
    for (uint32_t d = 0; d < file->devices_count; d++) {
        struct vgpu_use *use = &slot->use[d];
        vgpu_drop_runs(file, d, process, now_ns);
        /* Killed between these two lines, `repair` makes the sum from the slots again. */
        file->devices[d].used_bytes -= use->used_bytes;
        use->used_bytes = 0;
    }
    slot->taken = 0;
}

int vgpu_attach(struct vgpu_file *file)
{
    int pid = (int)getpid();
    int found = -1;
    vgpu_reap(file);
    for (int p = 0; p < VGPU_PROCESSES; p++) {
        struct vgpu_process *slot = &file->processes[p];
        if (slot->taken && slot->pid == pid) {
            free_slot(file, (uint32_t)p); /* the same process, before it called exec */
        }
        if (!slot->taken && found < 0) {
            found = p;
        }
    }
    if (found >= 0) {
        struct vgpu_process *slot = &file->processes[found];
        memset(slot, 0, sizeof *slot);
        slot->pid = pid;
        slot->start_ticks = start_ticks(pid);
        slot->taken = 1;
    }
    return found;
}

void vgpu_detach(struct vgpu_file *file, uint32_t process)
{
    free_slot(file, process);
}

void vgpu_reap(struct vgpu_file *file)
{
    for (uint32_t p = 0; p < VGPU_PROCESSES; p++) {
        struct vgpu_process *slot = &file->processes[p];
        if (slot->taken && start_ticks(slot->pid) != slot->start_ticks) {
            free_slot(file, p);
        }
    }
    file->reaped_ns = vgpu_now_ns();
}

void vgpu_reap_after(struct vgpu_file *file, uint64_t now_ns, uint64_t pause_ns)
{
    if (now_ns - file->reaped_ns > pause_ns) {
        vgpu_reap(file);
    }
}
