/* NVML sees what really ran, late and coarsely: it corrects the estimates, slowly. */
#define _GNU_SOURCE
#include "credit.h"

#include <time.h>

enum {
    SAMPLES = 512,
    LEAST_FACTOR = 125,
    MOST_FACTOR = 8000,
    /* In permille of the time that passed: differences below are noise, and what was charged below says nothing. */
    NOISE = 8,
    LEAST_CHARGED = 20,
    GAIN = 3,
    MOST_CHARGED = 64, /* times the time that passed: more no container can have had */
};
#define CORRECT_EVERY_NS SHARE_SECOND_NS

static nvmlProcessUtilizationSample_t samples[SAMPLES];
static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;

static bool nvml_device(const char *uuid, nvmlDevice_t *device)
{
    static bool started; /* under `asking` */
    if (!started && (!real_exists(CALL_nvmlInit_v2) || REAL(nvmlInit_v2)() != NVML_SUCCESS)) {
        return false;
    }
    started = true;
    return REAL(nvmlDeviceGetHandleByUUID)(uuid, device) == NVML_SUCCESS;
}

/* The mean of a process over all samples of it; -1 when there is none. */
static int32_t process_permille(unsigned int pid, unsigned int count)
{
    uint32_t sum = 0, found = 0;
    for (unsigned int s = 0; s < count; s++) {
        if (samples[s].pid == pid) {
            sum += samples[s].smUtil * 10;
            found++;
        }
    }
    return found == 0 ? -1 : (int32_t)(sum / found);
}

/* Of the container's processes together. NVML knows them by their pids on the node: inside of a container with pids of
 * its own there may be none that it knows. */
static int32_t processes_permille(nvmlDevice_t device)
{
    struct timespec now;
    unsigned int count = SAMPLES;
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned long long now_us = (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
    if (REAL(nvmlDeviceGetProcessUtilization)(device, samples, &count, now_us - 1000000) != NVML_SUCCESS) {
        return -1;
    }
    int32_t sum = -1;
    for (uint32_t p = 0; p < SHARE_PROCESSES; p++) {
        const struct share_process *process = &share.region->processes[p];
        int32_t permille = process->taken ? process_permille((unsigned int)process->pid, count) : -1;
        if (permille >= 0) {
            sum = (sum < 0 ? 0 : sum) + permille;
        }
    }
    return sum;
}

static bool is_alone(int place, int64_t now_ns)
{
    bool has_card = __atomic_load_n(&share.places[place].has_card, __ATOMIC_ACQUIRE);
    struct card_view *view = has_card ? card_view_take(place, now_ns) : NULL;
    bool alone = view != NULL && view->own >= 0 && card_is_alone(view, now_ns);
    if (view != NULL) {
        card_view_return(place);
    }
    return alone;
}

/* What the container had of the device in the last second; -1 when nobody can tell. */
static int32_t measured_permille(int place, int64_t now_ns)
{
    char uuid[SHARE_UUID];
    nvmlDevice_t device;
    nvmlUtilization_t all;
    region_uuid(share.region, (uint32_t)place, uuid);
    if (!nvml_device(uuid, &device)) {
        return -1;
    }
    int32_t permille = processes_permille(device);
    if (permille < 0 && is_alone(place, now_ns) && REAL(nvmlDeviceGetUtilizationRates)(device, &all) == NVML_SUCCESS) {
        return (int32_t)all.gpu * 10;
    }
    return permille;
}

int64_t utilisation_factor(int place)
{
    int64_t factor = __atomic_load_n(&share.region->devices[place].factor_permille, __ATOMIC_RELAXED);
    return factor == 0 ? 1000 : factor < LEAST_FACTOR ? LEAST_FACTOR : factor > MOST_FACTOR ? MOST_FACTOR : factor;
}

static void correct(int place, int64_t passed_ns, int64_t charged_ns, int32_t permille)
{
    struct share_device *device = &share.region->devices[place];
    int64_t short_ns = passed_ns / 1000 * permille - charged_ns;
    int64_t noise_ns = passed_ns / 1000 * NOISE;
    if (short_ns < noise_ns && short_ns > -noise_ns) {
        return;
    }
    /* A part of the way for what comes, and a part of what was wrong is made good: kernels that were charged in one
     * second and ran in the next would make it swing otherwise. */
    int64_t change = short_ns * 1000 / charged_ns;
    change = change < -500 ? -500 : change > 1000 ? 1000 : change;
    int64_t factor = utilisation_factor(place);
    factor += factor * change / (1000 * GAIN);
    factor = factor < LEAST_FACTOR ? LEAST_FACTOR : factor > MOST_FACTOR ? MOST_FACTOR : factor;
    __atomic_store_n(&device->factor_permille, (uint32_t)factor, __ATOMIC_RELAXED);
    credit_charge(place, short_ns / GAIN);
}

void utilisation_correct(int place, int64_t now_ns)
{
    struct share_device *device = &share.region->devices[place];
    int64_t before_ns = __atomic_load_n(&device->corrected_ns, __ATOMIC_RELAXED);
    int64_t passed_ns = elapsed_ns(now_ns, before_ns);
    if ((passed_ns >= 0 && passed_ns < CORRECT_EVERY_NS) ||
        !__atomic_compare_exchange_n(&device->corrected_ns, &before_ns, now_ns, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED)) {
        return;
    }
    uint64_t charged_ns = __atomic_load_n(&device->charged_ns, __ATOMIC_RELAXED);
    charged_ns -= __atomic_exchange_n(&device->corrected_charged_ns, charged_ns, __ATOMIC_RELAXED);
    uint64_t longest_ns = __atomic_exchange_n(&device->longest_ns, 0, __ATOMIC_RELAXED);
    /* Of a stretch with pauses, or with a kernel that reaches far into the next, nothing can be said. */
    if (passed_ns < 0 || passed_ns > 2 * CORRECT_EVERY_NS || longest_ns > (uint64_t)passed_ns / 10 ||
        charged_ns < (uint64_t)passed_ns / 1000 * LEAST_CHARGED ||
        charged_ns > (uint64_t)passed_ns * MOST_CHARGED || pthread_mutex_trylock(&asking) != 0) {
        return;
    }
    int32_t permille = measured_permille(place, now_ns);
    pthread_mutex_unlock(&asking);
    if (permille >= 0) {
        correct(place, passed_ns, (int64_t)charged_ns, permille);
    }
}
