/* Says one thing. */
#include <stdio.h>

int main(void)
{
    return puts("said") < 0;
}
