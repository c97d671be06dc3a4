// SPDX-License-Identifier: Apache-2.0
// What surrounds a process: working directory, umask, limits, priority, environment, clocks of the vdso, the present processor.
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "image.h"

int main(int argc, char **argv)
{
    start(&argc, &argv);
    char folder[] = "place0", path[512], before[400];
    folder[5] = (char)('0' + rank);
    mkdir(folder, 0700);
    CHECK(getcwd(before, sizeof before) != NULL, "%s", strerror(errno));
    WORKS(chdir(folder));
    umask(0137);
    struct rlimit limit = {321, 4321}, files;
    WORKS(getrlimit(RLIMIT_NOFILE, &files));
    limit.rlim_max = files.rlim_max < 4321 ? files.rlim_max : 4321;
    WORKS(setrlimit(RLIMIT_NOFILE, &limit));
    struct rlimit core = {1 << 20, 1 << 20};
    WORKS(getrlimit(RLIMIT_CORE, &files));
    core.rlim_max = files.rlim_max < 1 << 20 ? files.rlim_max : 1 << 20;
    core.rlim_cur = core.rlim_max / 2;
    WORKS(setrlimit(RLIMIT_CORE, &core));
    int usual = WORKS(getpriority(PRIO_PROCESS, 0)), nice = usual < 18 ? usual + 2 : 19;
    WORKS(setpriority(PRIO_PROCESS, 0, nice));
    setenv("PLACE", "first", 1);
    int about_itself = WORKS(open("/proc/self/status", O_RDONLY));
    double last = now();
    time_t seconds = time(NULL);
    uint64_t hash = FNV_START;
    for (int i = 0; i < ROUNDS; i++) {
        char here[512], name[32], value[32];
        snprintf(path, sizeof path, "%s/%s", before, folder);
        CHECK(getcwd(here, sizeof here) && strcmp(here, path) == 0, "round %d: the directory is %s", i, here);
        CHECK(umask(0137) == 0137, "round %d: the umask", i);
        CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur == 321, "round %d: %ld", i, (long)files.rlim_cur);
        CHECK(getrlimit(RLIMIT_CORE, &files) == 0 && files.rlim_cur == core.rlim_cur && files.rlim_max == core.rlim_max,
              "round %d: %ld, %ld", i, (long)files.rlim_cur, (long)files.rlim_max);
        CHECK(getpriority(PRIO_PROCESS, 0) == nice, "round %d: nice %d, was %d", i, getpriority(PRIO_PROCESS, 0), nice);
        snprintf(value, sizeof value, "%d", i);
        CHECK(i == 0 || atoi(getenv("PLACE")) == i - 1, "round %d: the environment", i);
        setenv("PLACE", value, 1);
        CHECK(now() >= last && time(NULL) >= seconds, "round %d: time runs backwards", i);
        last = now();
        seconds = time(NULL);
        char status[1024] = "";
        pid_t own;
        do { // an image between the two goes on in another process
            own = getpid();
            CHECK(pread(about_itself, status, sizeof status - 1, 0) > 0, "round %d: %s", i, strerror(errno));
        } while (own != getpid());
        snprintf(value, sizeof value, "\nPid:\t%d\n", own);
        CHECK(strstr(status, value) != NULL, "round %d: of another process: %s", i, status);
        int processor = sched_getcpu();
        CHECK(processor >= 0 && processor < sysconf(_SC_NPROCESSORS_CONF), "round %d: processor %d", i, processor);
        snprintf(name, sizeof name, "file%d", i % 10);
        FILE *file = fopen(name, "w");
        CHECK(file != NULL, "round %d: %s", i, strerror(errno));
        fclose(file);
        struct stat about;
        WORKS(stat(name, &about));
        CHECK((about.st_mode & 0777) == 0640, "round %d: %o", i, about.st_mode & 0777);
        CHECK(getpgrp() == getpid(), "round %d: the process is not the first of its group", i);
        hash = hash_bytes(hash, &i, 4);
        step(hash, 0.015);
    }
    return finish("place", hash);
}
