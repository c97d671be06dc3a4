// SPDX-License-Identifier: Apache-2.0
// Child processes: system, popen, fork. No image while one runs, and the program never sees a process of ours.
#include <sys/wait.h>

#include "image.h"

int main(int argc, char **argv)
{
    start(&argc, &argv);
    uint64_t hash = FNV_START;
    for (int i = 0; i < 40; i++) {
        int status;
        CHECK(waitpid(-1, &status, WNOHANG) == -1 && errno == ECHILD, "round %d: a child of nobody", i);
        if (i % 4 == 0) {
            status = system("sleep 0.02; exit 3");
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3, "round %d: system: %x", i, (unsigned)status);
        } else if (i % 4 == 2) {
            FILE *pipe = popen("sleep 0.02; echo 12", "r");
            int number = 0;
            CHECK(pipe && fscanf(pipe, "%d", &number) == 1 && number == 12, "round %d: popen: %d", i, number);
            CHECK(pclose(pipe) == 0, "round %d: pclose", i);
        } else {
            pid_t child = WORKS(fork());
            if (child == 0) {
                usleep(20000);
                _exit(i);
            }
            CHECK(waitpid(-1, &status, 0) == child && WEXITSTATUS(status) == i, "round %d: fork: %x", i, (unsigned)status);
        }
        CHECK(wait(&status) == -1 && errno == ECHILD, "round %d: a child of nobody", i);
        hash = hash_bytes(hash, &i, 4);
        step(hash, 0.05);
    }
    return finish("children", hash);
}
