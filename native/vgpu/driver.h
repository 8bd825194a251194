/* Inside libcuda.so.1: what this process has of the device model, and the objects behind the handles. */
#ifndef BATUTA_VGPU_DRIVER_H
#define BATUTA_VGPU_DRIVER_H

#include "batuta/cuda_names.h"
#include "model.h"

#define API __attribute__((visibility("default")))

/* The same function under the names that callers with a default stream for each thread use. Devices here run one kernel
 * at a time, so the two kinds of default stream cannot be told apart. */
#define PTSZ(name) extern API __typeof__(name) name##_ptsz __attribute__((alias(#name)))
#define PTDS(name) extern API __typeof__(name) name##_ptds __attribute__((alias(#name)))
#define ALIAS(other, name) extern API __typeof__(name) other __attribute__((alias(#name)))

enum { QUEUE_DEPTH = 1024 };

struct CUstream_st {
    struct CUctx_st *context;
    unsigned int flags;
    int priority;
    unsigned long long id;
    uint64_t ready_ns; /* when all that is in it will be done */
    struct CUgraph_st *capture;
    uint64_t launched;
    uint64_t ends_ns[QUEUE_DEPTH]; /* of the last launches: a launch waits while the queue is full */
    struct CUstream_st *next;
};

struct CUctx_st {
    uint32_t device; /* in the file */
    CUdevice ordinal; /* as this process counts */
    unsigned int flags;
    int primary_references;
    bool primary;
    bool alive;
    size_t settings[3]; /* stack, buffer and heap of kernels, as they were set; 0: as they are without that */
    unsigned long long id;
    struct CUstream_st default_stream;
    struct CUstream_st *streams;
    struct CUctx_st *next;
};

struct driver {
    pthread_mutex_t lock;
    struct vgpu_file *file;
    uint32_t process;
    int visible_count;
    uint32_t visible[VGPU_DEVICES];
    struct CUctx_st *primary[VGPU_DEVICES];
    struct CUctx_st *contexts;
    unsigned long long next_id;
    bool forked; /* a child of a process that had the driver: it has to start anew, by exec */
};

extern struct driver driver;

/* CUDA_SUCCESS once cuInit was called in this very process. */
CUresult driver_ready(void);
/* The current context of this thread; or why there is none, or why its device cannot be used. */
CUresult driver_context(CUcontext *context);
/* The file's index of a device; CUDA_ERROR_INVALID_DEVICE for one that is not visible. */
CUresult driver_device(CUdevice device, uint32_t *index);
/* Whether the device still works. */
CUresult driver_health(uint32_t index);
/* The object behind a stream handle, the default stream of the current context for 0. */
CUresult driver_stream(CUstream handle, struct CUstream_st **stream);

enum memory_kind { MEMORY_DEVICE, MEMORY_MANAGED, MEMORY_HOST, MEMORY_REGISTERED, MEMORY_RESERVED };
/* Device memory with an address of 32 bits: only to ask for it; it is then like any other. */
enum { MEMORY_LOW = MEMORY_RESERVED + 1 };

struct range {
    CUdeviceptr start;
    size_t size;
    size_t charged_bytes;
    enum memory_kind kind;
    struct CUctx_st *context;
    struct CUmemPoolHandle_st *pool;
    unsigned long long id;
    /* The tree: ordered by start, a heap by rank. */
    uint64_t rank;
    struct range *left, *right;
};

/* With driver.lock held. */
struct range *ranges_find(CUdeviceptr inside);
bool ranges_add(const struct range *range);
bool ranges_remove(CUdeviceptr start, struct range *removed);
/* Removes one range of the context, any; false when there is none left. */
bool ranges_remove_one_of(const struct CUctx_st *context, struct range *removed);

/* Memory on the device of a context: charged, and backed by pages of this process that come when they are touched. */
CUresult memory_allocate(CUcontext context, CUdeviceptr *address, size_t size, enum memory_kind kind,
                         CUmemoryPool pool);
CUresult memory_free(CUdeviceptr address);
/* With driver.lock held. */
void memory_free_all_of(struct CUctx_st *context);
CUresult memory_charge(uint32_t device, size_t bytes);
void memory_uncharge(uint32_t device, size_t bytes);
/* A pool counts what came out of it. With driver.lock held. */
void pool_count(CUmemoryPool pool, size_t bytes, bool taken);
/* What the settings of a context take beyond what every context has. */
size_t settings_bytes(const struct CUctx_st *context);
/* Whether reserved addresses have memory mapped to them. With driver.lock held. */
bool virtual_covers(CUdeviceptr start, size_t size);

/* Queues `length_ns` of device time on a stream. */
CUresult stream_launch(struct CUstream_st *stream, uint64_t length_ns);
CUresult stream_wait(const struct CUstream_st *stream);
/* When all that is in the stream will be done. */
uint64_t stream_ready_ns(const struct CUstream_st *stream);
void streams_destroy_all(struct CUctx_st *context);

/* Adds a kernel to a graph that is being captured. */
CUresult graph_record(struct CUgraph_st *graph, uint64_t length_ns);

/* How long a launch takes on the device of a stream. */
uint64_t kernel_length_ns(CUfunction function, uint32_t device, uint64_t threads);

#endif
