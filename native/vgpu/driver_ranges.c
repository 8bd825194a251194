/*
 * The address ranges of this process: a treap, ordered by address. Finding, adding and removing take the logarithm of
 * their number, so that the cost of an allocation does not depend on how many there are.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>

static struct range *root;

/* A rank as good as random, and the same in every run. */
static uint64_t rank_of(CUdeviceptr start)
{
    uint64_t mixed = start * 0x9E3779B97F4A7C15ull;
    mixed ^= mixed >> 29;
    mixed *= 0xBF58476D1CE4E5B9ull;
    return mixed ^ (mixed >> 32);
}

/* Parts a tree into what starts below `start` and the rest. */
static void part(struct range *tree, CUdeviceptr start, struct range **below, struct range **rest)
{
    while (tree != NULL) {
        if (tree->start < start) {
            *below = tree;
            below = &tree->right;
            tree = tree->right;
        } else {
            *rest = tree;
            rest = &tree->left;
            tree = tree->left;
        }
    }
    *below = NULL;
    *rest = NULL;
}

/* The opposite: all of `low` is below all of `high`. */
static struct range *join(struct range *low, struct range *high)
{
    struct range *tree = NULL;
    struct range **end = &tree;
    while (low != NULL && high != NULL) {
        if (low->rank > high->rank) {
            *end = low;
            end = &low->right;
            low = low->right;
        } else {
            *end = high;
            end = &high->left;
            high = high->left;
        }
    }
    *end = low != NULL ? low : high;
    return tree;
}

bool ranges_add(const struct range *range)
{
    struct range *node = malloc(sizeof *node);
    if (node == NULL) {
        return false;
    }
    *node = *range;
    node->rank = rank_of(node->start);
    struct range **place = &root;
    while (*place != NULL && (*place)->rank > node->rank) {
        place = (*place)->start < node->start ? &(*place)->right : &(*place)->left;
    }
    part(*place, node->start, &node->left, &node->right);
    *place = node;
    return true;
}

struct range *ranges_find(CUdeviceptr inside)
{
    struct range *found = NULL;
    for (struct range *node = root; node != NULL;) {
        if (node->start <= inside) {
            found = node;
            node = node->right;
        } else {
            node = node->left;
        }
    }
    return found != NULL && inside - found->start < found->size ? found : NULL;
}

bool ranges_remove(CUdeviceptr start, struct range *removed)
{
    struct range **place = &root;
    while (*place != NULL && (*place)->start != start) {
        place = (*place)->start < start ? &(*place)->right : &(*place)->left;
    }
    struct range *node = *place;
    if (node == NULL) {
        return false;
    }
    *place = join(node->left, node->right);
    *removed = *node;
    free(node);
    return true;
}

static struct range *find_of(struct range *tree, const struct CUctx_st *context)
{
    if (tree == NULL || tree->context == context) {
        return tree;
    }
    struct range *found = find_of(tree->left, context);
    return found != NULL ? found : find_of(tree->right, context);
}

bool ranges_remove_one_of(const struct CUctx_st *context, struct range *removed)
{
    const struct range *found = find_of(root, context);
    return found != NULL && ranges_remove(found->start, removed);
}
