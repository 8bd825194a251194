/*
 * A region that is cut off while it is mapped. Where all jobs have one user, as in local mode without root, a job can
 * truncate the file of another; the next access would end that other job with SIGBUS. Instead the mapping is replaced
 * by one of zeros, and nothing more is given: the accounts are gone, but the job goes on with what it has.
 */
#define _GNU_SOURCE
#include "region.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char *guarded; /* the start of the region */
static bool lost;     /* atomic */
static struct sigaction before;

/* A fault in other memory goes to the handler that was there before the library's. */
static void pass_on(int number, siginfo_t *info, void *context)
{
    if ((before.sa_flags & SA_SIGINFO) != 0) {
        before.sa_sigaction(number, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(number);
    } else {
        /* The access comes again when we return, and ends the process as it would have. */
        struct sigaction standard = {.sa_handler = SIG_DFL};
        sigaction(number, &standard, NULL);
    }
}

static void cut_off(int number, siginfo_t *info, void *context)
{
    static const char WORDS[] = "batuta share: the region was cut off while in use: no more GPU memory is given\n";
    const char *where = info->si_addr;
    bool ours = guarded != NULL && where >= guarded && where < guarded + sizeof(struct share_region);
    if (!ours || mmap(guarded, sizeof(struct share_region), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
        pass_on(number, info, context);
        return;
    }
    __atomic_store_n(&lost, true, __ATOMIC_RELAXED);
    (void)!write(STDERR_FILENO, WORDS, sizeof WORDS - 1);
}

void region_guard(struct share_region *region)
{
    struct sigaction action = {.sa_sigaction = cut_off, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    guarded = (char *)region;
    if (region == NULL) {
        sigaction(SIGBUS, &before, NULL);
        return;
    }
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &before);
}

bool region_is_lost(void)
{
    return __atomic_load_n(&lost, __ATOMIC_RELAXED);
}
