// SPDX-License-Identifier: Apache-2.0
// Makes, renames and removes things that must be new, or must be there, as most programs do: it ends the job with 5 if one is not.
//   deeds [ROUNDS=40] [PAUSE_MICROSECONDS=10000]
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static int rank;
static char names[8][64];

// A name of this rank and round.
static const char *name(const char *kind, long round)
{
    static int next;
    char *text = names[next++ % 8];
    snprintf(text, sizeof names[0], "%s.%d.%ld", kind, rank, round);
    return text;
}

static void must(int result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "rank %d: %s: %s\n", rank, what, strerror(errno));
        MPI_Abort(MPI_COMM_WORLD, 5);
    }
}

static void put(int fd, const char *text)
{
    must(fd, text);
    must((int)write(fd, text, strlen(text)), text);
    close(fd);
}

int main(int argc, char **argv)
{
    int size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    long rounds = argument(argc, argv, 1, 40), pause = argument(argc, argv, 2, 10000);
    uint64_t value = (uint64_t)rank;
    if (rank == 0)
        must(mkdir("out.d", 0777), "out.d");
    MPI_Barrier(MPI_COMM_WORLD);
    for (long i = 0; i < rounds; i++) {
        uint64_t in = 0;
        value = mixed(value, (uint64_t)i);
        MPI_Sendrecv(&value, 1, MPI_UINT64_T, (rank + 1) % size, 7, &in, 1, MPI_UINT64_T, (rank + size - 1) % size, 7,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        value = mixed(value, in);
        switch (i % 8) {
        case 0: // All try, and one succeeds.
        {
            char all[64];
            snprintf(all, sizeof all, "all.%ld", i);
            int mine = mkdir(all, 0777) == 0, made = 0;
            if (!mine && errno != EEXIST)
                must(-1, all);
            MPI_Allreduce(&mine, &made, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
            CHECK(made == 1, "%d ranks have made %s", made, all);
            break;
        }
        case 1:
            put(open(name("new", i), O_CREAT | O_EXCL | O_WRONLY, 0666), "new\n");
            must(mkdirat(AT_FDCWD, name("dir", i), 0777), "dir");
            break;
        case 2: {
            FILE *stream = fopen(name("stream", i), "wx");
            must(stream ? 0 : -1, "stream");
            fprintf(stream, "rank %d round %ld\n", rank, i);
            fclose(stream);
            must(symlink(name("stream", i), name("symlink", i)), "symlink");
            must(link(name("stream", i), name("link", i)), "link");
            break;
        }
        case 3:
            must(unlink(name("link", i - 1)), "unlink");
            must(rmdir(name("dir", i - 2)), "rmdir");
            must(rename(name("new", i - 2), name("renamed", i)), "rename");
            break;
        case 4: // Made and removed again, which a replay does again.
            put(open(name("short", i), O_CREAT | O_EXCL | O_WRONLY, 0666), "short\n");
            must(remove(name("short", i)), "remove");
            must(mkfifo(name("fifo", i), 0666), "fifo");
            break;
        case 5: {
            MPI_File file;
            char all[64];
            snprintf(all, sizeof all, "mpi.%ld", i);
            if (MPI_File_open(MPI_COMM_WORLD, all, MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_WRONLY, MPI_INFO_NULL, &file) !=
                MPI_SUCCESS)
                must(-1, all);
            MPI_File_write_at(file, 8 * rank, &value, 8, MPI_BYTE, MPI_STATUS_IGNORE);
            MPI_File_close(&file);
            break;
        }
        case 6: // A lock: whoever has it first.
            put(openat(AT_FDCWD, name("lock", 0), O_CREAT | O_EXCL | O_WRONLY, 0666), "mine\n");
            if (open(name("lock", 0), O_CREAT | O_EXCL | O_WRONLY, 0666) >= 0)
                must(-1, "a lock that is taken");
            break;
        default:
            must(unlink(name("lock", 0)), "unlock");
        }
        usleep((useconds_t)pause);
    }
    uint64_t sum = 0;
    MPI_Reduce(&value, &sum, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("result %016llx\n", (unsigned long long)sum);
    MPI_Finalize();
    return 0;
}
