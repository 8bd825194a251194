/*
 * The device model: one memory-mapped file that libcuda, libnvidia-ml and Batuta's Python side share.
 *
 * Everything has a fixed place: slots never move, and a slot that is free is not looked at. All fields are read and
 * written under the lock of the file. Whoever changes a field's place or meaning raises VGPU_LAYOUT, and does the same
 * in src/batuta/gpu/vgpu/device_file.py; a test compares the two, field by field.
 */
#ifndef BATUTA_VGPU_MODEL_H
#define BATUTA_VGPU_MODEL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VGPU_MAGIC 0x5550475655544142ull /* "BATUVGPU" as it lies in the file */
#define VGPU_LAYOUT 1u

enum {
    VGPU_DEVICES = 16,
    VGPU_PROCESSES = 256,
    VGPU_RUNS = 4096,
    VGPU_BUCKETS = 64,
    VGPU_EVENTS = 64,
    VGPU_LINKS = 18,
};

#define VGPU_MILLISECOND_NS 1000000ull
#define VGPU_SECOND_NS 1000000000ull
/* Utilisation is that of the last second: 40 buckets, and the one that is not over yet. */
#define VGPU_BUCKET_NS (25 * VGPU_MILLISECOND_NS)
#define VGPU_WINDOW_BUCKETS 40u

/* Kernels of one process, one after the other without a gap. */
struct vgpu_run {
    uint64_t start_ns;
    uint64_t end_ns;
    uint32_t process;
    uint32_t launches;
};

/* What a device did in one stretch of time; `number` is the time in units of VGPU_BUCKET_NS. */
struct vgpu_bucket {
    uint64_t number;
    uint64_t busy_ns;
    uint64_t received_bytes;
    uint64_t sent_bytes;
};

struct vgpu_event {
    uint64_t type;
    uint64_t data;
};

struct vgpu_device {
    /* What it is: written once. */
    char name[64];
    char uuid[48];
    char serial[32];
    char pci_bus_id[32];
    uint32_t compute_major;
    uint32_t compute_minor;
    uint32_t multiprocessors;
    uint32_t threads_per_multiprocessor;
    uint32_t pci_domain;
    uint32_t pci_bus;
    uint32_t pci_device;
    uint32_t pci_id;
    int32_t numa_node;
    uint32_t memory_bus_bits;
    uint32_t pcie_generation;
    uint32_t pcie_width;
    uint64_t memory_bytes;
    uint64_t context_bytes;
    uint64_t kernel_ns;
    uint32_t idle_mw;
    uint32_t limit_mw;
    uint32_t idle_sm_mhz;
    uint32_t max_sm_mhz;
    uint32_t memory_mhz;
    int32_t idle_celsius;
    int32_t busy_celsius;
    int32_t slowdown_celsius;
    int32_t shutdown_celsius;
    uint32_t ecc;
    uint32_t row_remap;
    uint32_t links;
    uint32_t link_mbps;
    int32_t link_peer[VGPU_LINKS]; /* a device, or -1 for a switch */

    /* What was done to it. */
    uint32_t lost;          /* off the bus: nothing answers any more */
    uint32_t uncorrectable; /* a memory error that ends every context */
    int32_t fixed_celsius;  /* 0: as the load says */
    uint32_t links_down;    /* one bit for each link */
    uint64_t ecc_volatile[2];
    uint64_t ecc_aggregate[2]; /* corrected, uncorrected */
    uint32_t remapped_correctable;
    uint32_t remapped_uncorrectable;
    uint32_t remap_pending;
    uint32_t remap_failed;

    /* What it does. */
    uint64_t used_bytes;
    uint64_t busy_ns;
    uint64_t launches;
    uint64_t settled_ns;
    uint64_t busy_until_ns;
    uint64_t first_run; /* runs are numbered from 0 on; run n is at runs[n % VGPU_RUNS] */
    uint64_t next_run;
    uint64_t next_event;
    struct vgpu_event events[VGPU_EVENTS];
    struct vgpu_bucket buckets[VGPU_BUCKETS];
    struct vgpu_run runs[VGPU_RUNS];
};

struct vgpu_share {
    uint64_t number;
    uint64_t busy_ns;
};

/* What a process has of one device. */
struct vgpu_use {
    uint64_t used_bytes;
    uint64_t peak_bytes;
    uint64_t busy_ns;
    uint64_t launches;
    uint32_t contexts;
    uint32_t reserved;
    struct vgpu_share shares[VGPU_BUCKETS];
};

/* A process is a pid and the time it started, in clock ticks since boot; a pid alone comes back. */
struct vgpu_process {
    uint32_t taken;
    int32_t pid;
    uint64_t start_ticks;
    struct vgpu_use use[VGPU_DEVICES];
};

struct vgpu_file {
    uint64_t magic;
    uint32_t layout;
    uint32_t devices_count;
    uint64_t size_bytes;
    uint64_t created_s;
    uint32_t damaged; /* somebody died with the lock; the next to have it puts the sums right */
    uint32_t repairs; /* how often that was so */
    uint64_t reaped_ns;
    char driver_version[32];
    union {
        pthread_mutex_t mutex;
        char space[64];
    } lock;
    struct vgpu_device devices[VGPU_DEVICES];
    struct vgpu_process processes[VGPU_PROCESSES];
};

enum vgpu_open_result { VGPU_OPENED, VGPU_ABSENT, VGPU_WRONG_LAYOUT, VGPU_UNREADABLE };

/* Maps the file that $BATUTA_VGPU names. What is wrong with it is said on standard error, once. */
enum vgpu_open_result vgpu_open(struct vgpu_file **file);

/* The lock. A holder that was killed is noticed here, and what it left is put right. */
void vgpu_lock(struct vgpu_file *file);
void vgpu_unlock(struct vgpu_file *file);

/* All below: with the lock held. */

/* A slot for this process, or -1 when all are taken. */
int vgpu_attach(struct vgpu_file *file);
void vgpu_detach(struct vgpu_file *file, uint32_t process);
/* Frees the slots of processes that are gone. */
void vgpu_reap(struct vgpu_file *file);
/* The same, unless somebody has done it less than `pause_ns` ago: it asks the kernel about each process. */
void vgpu_reap_after(struct vgpu_file *file, uint64_t now_ns, uint64_t pause_ns);

/* Takes memory; false when there is not enough, also after those that are gone gave theirs back. */
bool vgpu_take(struct vgpu_file *file, uint32_t process, uint32_t device, uint64_t bytes);
void vgpu_give_back(struct vgpu_file *file, uint32_t process, uint32_t device, uint64_t bytes);

/* Puts work at the end of the device's queue; gives the time at which it will be done, 0 when the queue is full. */
uint64_t vgpu_enqueue(struct vgpu_file *file, uint32_t process, uint32_t device, uint64_t not_before_ns,
                      uint64_t length_ns);
/* Adds what has run until now to the accounts. */
void vgpu_settle(struct vgpu_file *file, uint32_t device, uint64_t now_ns);
/* Takes the work out of the queue that a process left behind. */
void vgpu_drop_runs(struct vgpu_file *file, uint32_t device, uint32_t process, uint64_t now_ns);
void vgpu_count_copy(struct vgpu_device *device, uint64_t now_ns, uint64_t received_bytes, uint64_t sent_bytes);

/* Of the last second, for the device (settled before): share of time in permille. */
uint32_t vgpu_busy_permille(const struct vgpu_device *device, uint64_t now_ns);
uint32_t vgpu_share_permille(const struct vgpu_use *use, uint64_t now_ns);

uint64_t vgpu_now_ns(void);
void vgpu_sleep_until(uint64_t moment_ns);

#endif
