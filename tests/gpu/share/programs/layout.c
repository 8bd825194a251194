/* Prints where every field of the region and of a card is. */
#include "card.h"

#include <stdio.h>

#define SIZE(type) printf("%s %zu\n", #type, sizeof(struct type))
#define FIELD(type, field)                                                                                            \
    printf("%s.%s %zu %zu\n", #type, #field, offsetof(struct type, field), sizeof(((struct type *)0)->field))

int main(void)
{
#include "fields.inc"
    return 0;
}
