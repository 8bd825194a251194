/*
 * Reading what others on a card were granted and want, and telling them what this container wants.
 *
 * Files are opened each time and closed at once: a descriptor that is kept could be closed by the program, and its
 * number be that of one of its own files when we write. Nothing here can block or fault, whatever lies under the names.
 */
#define _GNU_SOURCE
#include "share.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Grants change when a container comes or goes, wants all the time. */
#define READ_GRANTS_EVERY_NS (100 * SHARE_MILLISECOND_NS)
#define READ_DEMANDS_EVERY_NS (10 * SHARE_MILLISECOND_NS)
#define PUBLISH_EVERY_NS (10 * SHARE_MILLISECOND_NS)

enum { WHOLE = 1000, MOST_WEIGHT = 10000, CARD_PATH = SHARE_PATH + SHARE_UUID + 32 };

static struct card_view views[SHARE_DEVICES];
static pthread_mutex_t taken[SHARE_DEVICES] = {[0 ... SHARE_DEVICES - 1] = PTHREAD_MUTEX_INITIALIZER};

static uint32_t at_most(uint32_t value, uint32_t most)
{
    return value < most ? value : most;
}

/* A copy of a whole file of that size; false for anything else. */
static bool copy_file(const char *path, void *to, size_t size, struct stat *status)
{
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0) {
        return false;
    }
    bool copied = fstat(descriptor, status) == 0 && S_ISREG(status->st_mode) && status->st_size == (off_t)size &&
                  pread(descriptor, to, size, 0) == (ssize_t)size;
    close(descriptor);
    return copied;
}

static void demand_path(char *path, int place, uint64_t key)
{
    snprintf(path, CARD_PATH, "%s/%s.%016" PRIx64, share.cards, share.places[place].uuid, key);
}

/* Why the grants in a file do not count; NULL when they do. */
static const char *read_grants(const char *path, struct card_view *view)
{
    struct share_card card;
    struct stat status;
    if (!copy_file(path, &card, sizeof card, &status)) {
        return "it is not there, or has another size than a card's";
    }
    const char *why = limits_distrust(&status, true);
    if (why != NULL) {
        return why;
    }
    if (card.magic != SHARE_CARD_MAGIC || card.layout != SHARE_CARD_LAYOUT || card.count > SHARE_TENANTS) {
        return "something else is in it, or another version wrote it";
    }
    view->own = -1;
    view->count = card.count;
    for (uint32_t t = 0; t < card.count; t++) {
        const struct share_tenant *given = &card.tenants[t];
        view->tenants[t] = (struct share_tenant){given->key, at_most(given->hard_permille, WHOLE),
                                                 at_most(given->soft_permille, WHOLE),
                                                 at_most(given->weight, MOST_WEIGHT), 0};
        view->own = given->key == share.key ? (int)t : view->own;
    }
    return NULL;
}

static void refresh_grants(int place, struct card_view *view, int64_t now_ns)
{
    static bool said; /* under the lock of the view; twice for two cards does no harm */
    char path[CARD_PATH];
    if (view->granted_ns != 0 && now_ns - view->granted_ns < READ_GRANTS_EVERY_NS) {
        return;
    }
    view->granted_ns = now_ns;
    snprintf(path, sizeof path, "%s/%s", share.cards, share.places[place].uuid);
    const char *why = read_grants(path, view);
    if (why != NULL) {
        view->own = -1;
        view->count = 0;
    }
    if (why != NULL && !said) {
        said = true;
        fprintf(stderr, "batuta share: cannot use %s: %s\n", path, why);
    }
    view->wanted_ns = 0; /* the places of the tenants may have changed */
}

static void refresh_demands(int place, struct card_view *view, int64_t now_ns)
{
    if (view->wanted_ns != 0 && now_ns - view->wanted_ns < READ_DEMANDS_EVERY_NS) {
        return;
    }
    view->wanted_ns = now_ns;
    for (uint32_t t = 0; t < view->count; t++) {
        char path[CARD_PATH];
        struct stat status;
        struct share_demand *demand = &view->demands[t];
        demand_path(path, place, view->tenants[t].key);
        if (!copy_file(path, demand, sizeof *demand, &status) || demand->magic != SHARE_DEMAND_MAGIC ||
            demand->layout != SHARE_CARD_LAYOUT) {
            memset(demand, 0, sizeof *demand);
        }
    }
}

struct card_view *card_view_take(int place, int64_t now_ns)
{
    if (pthread_mutex_trylock(&taken[place]) != 0) {
        return NULL;
    }
    refresh_grants(place, &views[place], now_ns);
    refresh_demands(place, &views[place], now_ns);
    return &views[place];
}

void card_view_return(int place)
{
    pthread_mutex_unlock(&taken[place]);
}

void card_publish(int place, struct card_view *view, const struct share_demand *demand, int64_t now_ns)
{
    char path[CARD_PATH];
    struct stat status;
    bool hungrier = demand->hungry_until_ns >= now_ns && view->demands[view->own].hungry_until_ns < now_ns;
    view->demands[view->own] = *demand;
    if (!hungrier && now_ns - view->published_ns < PUBLISH_EVERY_NS) {
        return;
    }
    view->published_ns = now_ns;
    demand_path(path, place, share.key);
    int descriptor = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (descriptor >= 0) {
        if (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode)) {
            /* Without room on the disk the others do not learn of it: they see one that wants nothing. */
            (void)!pwrite(descriptor, demand, sizeof *demand, 0);
        }
        close(descriptor);
    }
}

void card_after_fork(void)
{
    for (int place = 0; place < SHARE_DEVICES; place++) {
        pthread_mutex_init(&taken[place], NULL);
    }
}
