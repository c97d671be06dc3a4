// SPDX-License-Identifier: Apache-2.0
// Alternate signal stacks: a handler is captured while it runs on one, in the main thread and in another.
#include "image.h"

static volatile sig_atomic_t handled[2];
static char *stacks[2];
static size_t size;
static __thread int me;

static void handler(int number)
{
    (void)number;
    char here[256];
    memset(here, me + 1, sizeof here);
    stack_t stack;
    WORKS(sigaltstack(NULL, &stack));
    CHECK(here > stacks[me] && here < stacks[me] + size, "not on the alternate stack");
    CHECK(stack.ss_flags & SS_ONSTACK && stack.ss_sp == stacks[me], "the kernel does not know the alternate stack");
    for (double end = now() + 0.012; now() < end;)
        ;
    for (size_t i = 0; i < sizeof here; i++)
        CHECK(here[i] == me + 1, "the alternate stack was overwritten");
    handled[me]++;
}

static void own_stack(void)
{
    stacks[me] = allocate(size);
    stack_t stack = {.ss_sp = stacks[me], .ss_size = size};
    WORKS(sigaltstack(&stack, NULL));
}

static void *other(void *nothing)
{
    me = 1;
    own_stack();
    for (int i = 0; i < ROUNDS; i++) {
        pthread_kill(pthread_self(), SIGUSR1);
        CHECK(handled[1] == i + 1, "round %d", i);
        usleep(2000);
    }
    return nothing;
}

int main(int argc, char **argv)
{
    start(&argc, &argv);
    size = (size_t)sysconf(_SC_SIGSTKSZ) + 16384;
    own_stack();
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    WORKS(sigaction(SIGUSR1, &action, NULL));
    pthread_t thread;
    pthread_create(&thread, NULL, other, NULL);
    uint64_t hash = FNV_START;
    for (int i = 0; i < ROUNDS; i++) {
        raise(SIGUSR1);
        CHECK(handled[0] == i + 1, "round %d", i);
        stack_t stack;
        WORKS(sigaltstack(NULL, &stack));
        CHECK(stack.ss_flags == 0 && stack.ss_sp == stacks[0] && stack.ss_size == size, "round %d", i);
        hash = hash_bytes(hash, &i, 4);
        step(hash, 0.001);
    }
    pthread_join(thread, NULL);
    return finish("altstack", hash);
}
