/* A hash table with open addresses: finding one among twenty thousand costs what finding one among ten does. */
#define _GNU_SOURCE
#include "ledger.h"

#include <stdlib.h>

enum { FIRST_SIZE = 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *entries;
static size_t size;     /* a power of two, or 0 */
static size_t count;    /* entries in it */
static size_t expected; /* and those that will be */

static size_t place_of(enum kind kind, uint64_t key)
{
    uint64_t mixed = (key ^ (uint64_t)kind << 60) * 0x9e3779b97f4a7c15ull;
    return (size_t)(mixed >> 20) & (size - 1);
}

static void insert(const struct entry *entry)
{
    size_t place = place_of(entry->kind, entry->key);
    while (entries[place].kind != KIND_FREE) {
        place = (place + 1) & (size - 1);
    }
    entries[place] = *entry;
    count++;
}

static bool grow(void)
{
    struct entry *before = entries;
    size_t size_before = size;
    struct entry *made = calloc(size == 0 ? FIRST_SIZE : 2 * size, sizeof *made);
    if (made == NULL) {
        return false;
    }
    entries = made;
    size = size == 0 ? FIRST_SIZE : 2 * size;
    count = 0;
    for (size_t e = 0; e < size_before; e++) {
        if (before[e].kind != KIND_FREE) {
            insert(&before[e]);
        }
    }
    free(before);
    return true;
}

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

/* What the parent has allocated is not the child's. */
static void in_child(void)
{
    for (size_t e = 0; e < size; e++) {
        entries[e].kind = KIND_FREE;
    }
    count = expected = 0;
    virtual_forget();
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}

bool ledger_expect(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    bool room = 10 * (count + expected + 1) <= 7 * size || grow();
    expected += room;
    pthread_mutex_unlock(&lock);
    return room;
}

void ledger_forgo(void)
{
    pthread_mutex_lock(&lock);
    expected -= expected > 0;
    pthread_mutex_unlock(&lock);
}

/* With the lock held: its place, or -1. */
static ptrdiff_t locate(enum kind kind, uint64_t key)
{
    if (size == 0) {
        return -1;
    }
    for (size_t place = place_of(kind, key); entries[place].kind != KIND_FREE; place = (place + 1) & (size - 1)) {
        if (entries[place].kind == kind && entries[place].key == key) {
            return (ptrdiff_t)place;
        }
    }
    return -1;
}

void ledger_put(const struct entry *entry)
{
    pthread_mutex_lock(&lock);
    expected -= expected > 0;
    ptrdiff_t same = locate(entry->kind, entry->key);
    if (same >= 0) {
        entries[same] = *entry;
    } else {
        insert(entry);
    }
    pthread_mutex_unlock(&lock);
}

/* With the lock held. Those behind it move up, so that no search ends too soon. */
static void erase(size_t hole)
{
    size_t place = hole;
    for (;;) {
        place = (place + 1) & (size - 1);
        if (entries[place].kind == KIND_FREE) {
            break;
        }
        size_t home = place_of(entries[place].kind, entries[place].key);
        bool stays = hole < place ? hole < home && home <= place : hole < home || home <= place;
        if (!stays) {
            entries[hole] = entries[place];
            hole = place;
        }
    }
    entries[hole].kind = KIND_FREE;
    count--;
}

bool ledger_take(enum kind kind, uint64_t key, struct entry *taken)
{
    pthread_mutex_lock(&lock);
    ptrdiff_t place = locate(kind, key);
    if (place >= 0) {
        *taken = entries[place];
        erase((size_t)place);
    }
    pthread_mutex_unlock(&lock);
    return place >= 0;
}

bool ledger_find(enum kind kind, uint64_t key, struct entry *found)
{
    pthread_mutex_lock(&lock);
    ptrdiff_t place = locate(kind, key);
    if (place >= 0) {
        *found = entries[place];
    }
    pthread_mutex_unlock(&lock);
    return place >= 0;
}

/* Erasing moves entries up into the hole, so the cursor stays where it is; those that it has passed stay behind it. */
bool ledger_take_next_of(const void *context, size_t *cursor, struct entry *taken)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (; !found && *cursor < size; *cursor += !found) {
        const struct entry *entry = &entries[*cursor];
        bool of_a_context = entry->kind >= KIND_LINEAR && entry->kind <= KIND_SETTING;
        if (of_a_context && entry->owner == context) {
            *taken = *entry;
            erase(*cursor);
            found = true;
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}
