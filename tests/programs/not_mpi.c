// SPDX-License-Identifier: Apache-2.0
// No MPI here.
#include <stdio.h>

int main(void)
{
    puts("no MPI here");
    return 0;
}
