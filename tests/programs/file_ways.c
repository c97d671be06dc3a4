// SPDX-License-Identifier: Apache-2.0
// Ways to use files, by MPI-IO and without it. What a rank computes depends on each byte that it has read, and what it writes on
// what it has computed. Without failures each way prints the same and writes the same files every time.
//   file_ways WAY DIRECTORY [STEPS=60] [PAUSE_MICROSECONDS=4000]
#define _GNU_SOURCE
#define ROW 48
#define SEEN (48 * 64)
#include "ways.h"
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define BYTES ((MPI_Offset)(8 * MANY))
#define BOTH (MPI_MODE_CREATE | MPI_MODE_RDWR)

static const char *directory;

static const char *name(const char *format, ...)
{
    static char names[8][512];
    static int next;
    char *text = names[next++ % 8];
    int at = snprintf(text, 256, "%s/", directory);
    va_list values;
    va_start(values, format);
    vsnprintf(text + at, 256, format, values);
    va_end(values);
    return text;
}

static MPI_Info hints(const char *collective)
{
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "romio_cb_write", collective), MPI_Info_set(info, "romio_cb_read", collective);
    MPI_Info_set(info, "cb_nodes", "2"), MPI_Info_set(info, "cb_buffer_size", "512");
    MPI_Info_set(info, "ind_wr_buffer_size", "512"), MPI_Info_set(info, "ind_rd_buffer_size", "512");
    MPI_Info_set(info, "romio_ds_write", "enable"), MPI_Info_set(info, "romio_ds_read", "enable");
    return info;
}

static MPI_File opened_by(MPI_Comm comm, const char *path, int mode, const char *collective)
{
    MPI_File file;
    MPI_Info info = hints(collective);
    int error = MPI_File_open(comm, path, mode, info, &file);
    MPI_Info_free(&info);
    CHECK(error == MPI_SUCCESS, "cannot open %s: %d", path, error);
    return file;
}

static MPI_File opened(const char *path, int mode)
{
    return opened_by(WORLD, path, mode, "enable");
}

static void view(MPI_File file, MPI_Offset at, MPI_Datatype kind)
{
    MPI_Type_commit(&kind);
    int error = MPI_File_set_view(file, at, MPI_UINT64_T, kind, "native", MPI_INFO_NULL);
    CHECK(error == MPI_SUCCESS, "view");
    MPI_Type_free(&kind);
}

static MPI_Datatype tile(int of)
{
    int all[] = {6, 8 * size}, part[] = {6, 8}, first[] = {0, 8 * of};
    MPI_Datatype kind;
    MPI_Type_create_subarray(2, all, part, first, MPI_ORDER_C, MPI_UINT64_T, &kind);
    return kind;
}

static MPI_Datatype cyclic(int of)
{
    int all[] = {MANY * size}, how[] = {MPI_DISTRIBUTE_CYCLIC}, most[] = {3}, ranks[] = {size};
    MPI_Datatype kind;
    MPI_Type_create_darray(size, of, 1, all, how, most, ranks, MPI_ORDER_C, MPI_UINT64_T, &kind);
    return kind;
}

static MPI_Datatype comb(void)
{
    MPI_Datatype kind;
    MPI_Type_vector(MANY, 1, size, MPI_UINT64_T, &kind);
    return kind;
}

static MPI_Offset version(long step, int again)
{
    return again ? step % 2 * BYTES * size : step * BYTES * size;
}

static void tiles(int again, MPI_Datatype (*kind)(int), const char *path)
{
    MPI_File file = opened(name("%s", path), BOTH);
    for (long step = 0; step < steps; step++, rest(step)) {
        view(file, version(step, again), kind(rank));
        MPI_File_write_all(file, new_row(), MANY, MPI_UINT64_T, DONE);
        MPI_Barrier(WORLD);
        view(file, version(step, again), kind(beside));
        MPI_File_read_all(file, seen, MANY, MPI_UINT64_T, DONE);
        MPI_Barrier(WORLD);
        talk(look(seen, BYTES));
    }
    MPI_File_close(&file);
}

static void io_subarray(void) { tiles(0, tile, "tiles"); }
static void io_subarray_again(void) { tiles(1, tile, "tiles"); }
static void io_darray(void) { tiles(0, cyclic, "cyclic"); }
static void io_darray_again(void) { tiles(1, cyclic, "cyclic"); }

// Data sieving: each rank reads blocks, changes its places in them and writes them, under a lock.
static void sieve(int again)
{
    MPI_File file = opened_by(WORLD, name("sieve"), BOTH, "disable");
    for (long step = 0; step < steps; step++, rest(step)) {
        view(file, version(step, again) + 8 * rank, comb());
        MPI_File_write(file, new_row(), MANY, MPI_UINT64_T, DONE);
        MPI_Barrier(WORLD);
        view(file, version(step, again) + 8 * beside, comb());
        MPI_File_read(file, seen, MANY, MPI_UINT64_T, DONE);
        talk(look(seen, BYTES));
        MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL);
        MPI_File_read_at(file, version(step, again), seen, (int)BYTES * size, MPI_BYTE, DONE);
        MPI_Barrier(WORLD);
        talk(look(seen, (size_t)BYTES * size));
    }
    MPI_File_close(&file);
}

static void io_sieve(void) { sieve(0); }
static void io_sieve_again(void) { sieve(1); }

static void io_split(void)
{
    MPI_File file = opened(name("split"), BOTH);
    for (long step = 0; step < steps; step++, rest(step)) {
        MPI_Offset at = step % 3 * BYTES * size;
        if (step % 2) {
            view(file, at + 8 * rank, comb());
            MPI_File_write_all_begin(file, new_row(), MANY, MPI_UINT64_T);
            talk(step);
            MPI_File_write_all_end(file, row, DONE);
            MPI_Barrier(WORLD);
            view(file, at + 8 * beside, comb());
            MPI_File_read_all_begin(file, seen, MANY, MPI_UINT64_T);
            talk(step);
            MPI_File_read_all_end(file, seen, DONE);
        } else {
            MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL);
            MPI_File_write_at_all_begin(file, at + rank * BYTES, new_row(), MANY, MPI_UINT64_T);
            talk(step);
            MPI_File_write_at_all_end(file, row, DONE);
            MPI_Barrier(WORLD);
            MPI_File_read_at_all_begin(file, at + beside * BYTES, seen, MANY, MPI_UINT64_T);
            MPI_File_read_at_all_end(file, seen, DONE);
        }
        MPI_Barrier(WORLD);
        talk(look(seen, BYTES));
    }
    MPI_File_close(&file);
}

static void io_nonblocking(void)
{
    MPI_File file = opened(name("nonblocking"), BOTH);
    for (long step = 0; step < steps; step++, rest(step)) {
        MPI_Request all[4];
        new_row();
        MPI_Offset at = step % 4 * BYTES * size + rank * BYTES, other = at + (beside - rank) * BYTES;
        if (step % 2) {
            for (int i = 0; i < 4; i++)
                MPI_File_iwrite_at(file, at + i * BYTES / 4, row + i * MANY / 4, MANY / 4, MPI_UINT64_T, &all[i]);
            talk(step);
            MPI_Waitall(4, all, MPI_STATUSES_IGNORE);
            MPI_Barrier(WORLD);
            for (int i = 0; i < 4; i++)
                MPI_File_iread_at(file, other + i * BYTES / 4, seen + i * MANY / 4, MANY / 4, MPI_UINT64_T, &all[i]);
            MPI_Waitall(4, all, MPI_STATUSES_IGNORE);
        } else {
            MPI_File_iwrite_at_all(file, at, row, MANY, MPI_UINT64_T, &all[0]);
            talk(step);
            MPI_Wait(&all[0], DONE);
            MPI_Barrier(WORLD);
            MPI_File_iread_at_all(file, other, seen, MANY, MPI_UINT64_T, &all[0]);
            talk(step);
            MPI_Wait(&all[0], DONE);
        }
        MPI_Barrier(WORLD);
        talk(look(seen, BYTES));
    }
    MPI_File_close(&file);
}

// The ranks take turns with the shared pointer.
static void io_turns(void)
{
    MPI_File file = opened(name("turns"), BOTH);
    for (long step = 0; step < steps; step++, rest(step)) {
        if (step % 10 == 0)
            MPI_File_seek_shared(file, 0, MPI_SEEK_SET);
        for (int turn = 0; turn < size; turn++) {
            if (turn == (rank + step) % size)
                MPI_File_write_shared(file, new_row(), MANY, MPI_UINT64_T, DONE);
            MPI_Barrier(WORLD);
        }
        MPI_Offset at;
        MPI_File_get_position_shared(file, &at);
        MPI_Barrier(WORLD);
        talk((uint64_t)at);
        if (step % 10 == 4) {
            MPI_File_seek_shared(file, -BYTES * size, MPI_SEEK_CUR);
            for (int turn = 0; turn < size; turn++) {
                if (turn == rank)
                    MPI_File_read_shared(file, seen, MANY, MPI_UINT64_T, DONE);
                MPI_Barrier(WORLD);
            }
            talk(look(seen, BYTES));
        }
    }
    MPI_File_close(&file);
}

static void io_ordered(void)
{
    MPI_File file = opened(name("ordered"), BOTH);
    for (long step = 0; step < steps; step++, rest(step)) {
        if (step % 2)
            MPI_File_write_ordered(file, new_row(), MANY - rank, MPI_UINT64_T, DONE);
        else {
            MPI_File_write_ordered_begin(file, new_row(), MANY - rank, MPI_UINT64_T);
            MPI_File_write_ordered_end(file, row, DONE);
        }
        talk(step);
        if (step % 8 == 7) {
            MPI_File_seek_shared(file, 0, MPI_SEEK_SET);
            for (int i = 0; i < 8; i++) {
                MPI_File_read_ordered(file, seen, MANY - rank, MPI_UINT64_T, DONE);
                talk(look(seen, sizeof row - 8 * (size_t)rank));
            }
            if (step % 16 == 15)
                MPI_File_seek_shared(file, 0, MPI_SEEK_SET);
        }
    }
    MPI_File_close(&file);
}

static void io_atomic(void)
{
    MPI_File file = opened(name("atomic"), BOTH);
    MPI_File_set_atomicity(file, 1);
    for (long step = 0; step < steps; step++, rest(step)) {
        if (rank == step % size)
            MPI_File_write_at(file, step % 5 * 40, new_row(), MANY, MPI_UINT64_T, DONE);
        MPI_Barrier(WORLD);
        MPI_File_read_at(file, 0, seen, MANY, MPI_UINT64_T, DONE);
        MPI_Barrier(WORLD);
        talk(look(seen, BYTES));
    }
    MPI_File_close(&file);
}

static void io_append(void)
{
    for (long step = 0; step < steps; step++, rest(step)) {
        MPI_File file = opened(name("append"), MPI_MODE_CREATE | MPI_MODE_WRONLY | MPI_MODE_APPEND);
        MPI_File_write_ordered(file, new_row(), MANY, MPI_UINT64_T, DONE);
        MPI_File_close(&file);
        MPI_Barrier(WORLD);
        file = opened(name("append"), MPI_MODE_RDONLY);
        MPI_Offset length;
        MPI_File_get_size(file, &length);
        MPI_File_read_at_all(file, length - (size - beside) * BYTES, seen, MANY, MPI_UINT64_T, DONE);
        MPI_File_close(&file);
        talk(look(seen, BYTES));
    }
}

static void io_scratch(void)
{
    MPI_Comm half;
    MPI_Comm_split(WORLD, rank % 2, rank, &half);
    for (long step = 0; step < steps; step++, rest(step)) {
        MPI_Comm comm = step % 2 ? half : MPI_COMM_SELF;
        int mine, many;
        MPI_Comm_rank(comm, &mine), MPI_Comm_size(comm, &many);
        const char *path = name("scratch-%d", step % 2 ? rank % 2 : rank);
        MPI_File file = opened_by(comm, path, BOTH | MPI_MODE_DELETE_ON_CLOSE | MPI_MODE_EXCL, "enable");
        MPI_File_write_at(file, mine * BYTES, new_row(), MANY, MPI_UINT64_T, DONE);
        MPI_Barrier(comm);
        MPI_File_read_at(file, (mine + 1) % many * BYTES, seen, MANY, MPI_UINT64_T, DONE);
        MPI_File_close(&file);
        talk(look(seen, BYTES));
    }
    MPI_Comm_free(&half);
}

static void io_sizes(void)
{
    MPI_File file = opened(name("sizes"), BOTH);
    for (long step = 0; step < steps; step++, rest(step)) {
        MPI_Offset length = (MPI_Offset)(mixed(1, (uint64_t)step) % 1500) * 8;
        if (step % 3 == 0)
            MPI_File_set_size(file, length);
        else if (step % 3 == 1)
            MPI_File_preallocate(file, length);
        else
            MPI_File_write_at_all(file, length + rank * BYTES, new_row(), MANY, MPI_UINT64_T, DONE);
        MPI_Barrier(WORLD);
        MPI_File_get_size(file, &length);
        memset(seen, 1, sizeof seen);
        MPI_File_read_at(file, length > 8000 ? length - 8000 : 0, seen, 1000, MPI_UINT64_T, DONE);
        MPI_Barrier(WORLD);
        talk((uint64_t)length + look(seen, 8000));
    }
    MPI_File_close(&file);
}

// Files of one rank each, with pointers of its own, a view that is counted in rows, and memory with gaps.
static void io_own(void)
{
    MPI_File file = opened_by(MPI_COMM_SELF, name("own-%d", rank), BOTH, "enable");
    MPI_Datatype gaps;
    MPI_Type_vector(MANY / 2, 1, 2, MPI_UINT64_T, &gaps);
    MPI_Type_commit(&gaps);
    for (long step = 0; step < steps; step++, rest(step)) {
        MPI_Offset at;
        MPI_File_write(file, new_row(), 1, gaps, DONE);
        MPI_File_get_position(file, &at);
        if (step % 4 == 3) {
            memset(seen, 0, sizeof seen);
            MPI_File_seek(file, -BYTES, MPI_SEEK_CUR);
            MPI_File_read(file, seen, 2, gaps, DONE);
        }
        if (step % 9 == 8)
            MPI_File_seek(file, 0, MPI_SEEK_SET);
        if (step % 11 == 10)
            MPI_File_seek(file, 0, MPI_SEEK_END);
        talk(look(seen, 2 * BYTES) + (uint64_t)at);
    }
    MPI_Type_free(&gaps);
    MPI_File_close(&file);
}

static void io_portable(void)
{
    MPI_File file = opened(name("portable"), BOTH);
    MPI_File_set_view(file, 0, MPI_UINT64_T, MPI_UINT64_T, "external32", MPI_INFO_NULL);
    for (long step = 0; step < steps; step++, rest(step)) {
        MPI_File_write_at_all(file, (step % 3 * size + rank) * MANY, new_row(), MANY, MPI_UINT64_T, DONE);
        MPI_Barrier(WORLD);
        MPI_File_read_at_all(file, (step % 3 * size + beside) * MANY, seen, MANY, MPI_UINT64_T, DONE);
        MPI_Barrier(WORLD);
        talk(look(seen, BYTES));
    }
    MPI_File_close(&file);
}

// The row goes from rank to rank, and each changes it.
static void io_passed(void)
{
    MPI_File file = opened(name("passed"), BOTH);
    for (long step = 0; step < steps; step++, rest(step)) {
        if (rank == step % size) {
            memset(seen, 0, sizeof seen);
            MPI_File_read_at(file, 0, seen, MANY, MPI_UINT64_T, DONE);
            for (int i = 0; i < MANY; i++)
                seen[i] = mixed(seen[i], total);
            MPI_File_write_at(file, 0, seen, MANY, MPI_UINT64_T, DONE);
        }
        MPI_Barrier(WORLD);
        talk(look(seen, BYTES));
    }
    MPI_File_close(&file);
}

// One handle only writes, another one only reads. Places are overwritten.
static void one_writes(int anew)
{
    MPI_File out = opened(name("one-way"), MPI_MODE_CREATE | MPI_MODE_WRONLY), in = opened(name("one-way"), MPI_MODE_RDONLY);
    for (long step = 0; step < steps; step++, rest(step)) {
        MPI_Offset at = step % 3 * BYTES * size;
        if (anew) {
            MPI_File_close(&out);
            out = opened(name("one-way"), MPI_MODE_CREATE | MPI_MODE_WRONLY);
        }
        MPI_File_write_at(out, at + rank * BYTES, new_row(), MANY, MPI_UINT64_T, DONE);
        if (anew) {
            MPI_File_close(&in);
            in = opened(name("one-way"), MPI_MODE_RDONLY);
        }
        MPI_Barrier(WORLD);
        memset(seen, 0, BYTES);
        MPI_File_read_at(in, at + beside * BYTES, seen, MANY, MPI_UINT64_T, DONE);
        MPI_Barrier(WORLD);
        talk(look(seen, BYTES));
        MPI_File_read_at(in, (at + BYTES * size) % (3 * BYTES * size) + rank * BYTES, seen, MANY, MPI_UINT64_T, DONE);
        talk(look(seen, BYTES));
    }
    MPI_File_close(&out), MPI_File_close(&in);
}

static void io_one_way(void) { one_writes(0); }
static void io_one_way_anew(void) { one_writes(1); }

// Two files: what is read from one goes into the other. They are opened again and again, in different ways.
static void io_two(void)
{
    MPI_Comm half;
    MPI_Comm_split(WORLD, rank % 2, rank, &half);
    MPI_File first = opened(name("first"), BOTH), second = opened_by(half, name("second-%d", rank % 2), BOTH, "enable");
    for (long step = 0; step < steps; step++, rest(step)) {
        view(first, step % 4 * BYTES * size, tile(rank));
        MPI_File_write_all(first, new_row(), MANY, MPI_UINT64_T, DONE);
        MPI_Barrier(WORLD);
        view(first, step % 4 * BYTES * size, tile(beside));
        MPI_File_read_all(first, seen, MANY, MPI_UINT64_T, DONE);
        MPI_Barrier(WORLD);
        MPI_File_write_at(second, (step % 4 * size + rank) * BYTES, seen, MANY, MPI_UINT64_T, DONE);
        MPI_File_read_at(second, ((step + 1) % 4 * size + rank) * BYTES, seen + MANY, MANY, MPI_UINT64_T, DONE);
        talk(look(seen, 2 * BYTES));
        if (step % 5 == 4) {
            MPI_File_close(&first);
            first = opened(name(step % 10 == 4 ? "third" : "first"), BOTH);
        }
        if (step % 7 == 6) {
            MPI_File_close(&second);
            second = opened_by(half, name("second-%d", rank % 2), MPI_MODE_RDWR, step % 2 ? "enable" : "disable");
        }
    }
    MPI_File_close(&first), MPI_File_close(&second);
    MPI_Comm_free(&half);
}

// What was written steps ago is read, and then overwritten by others.
static void io_delayed(void)
{
    MPI_File file = opened(name("delayed"), BOTH);
    for (long step = 0; step < steps; step++, rest(step)) {
        MPI_File_write_at(file, (step % 8 * size + rank) * BYTES, new_row(), MANY, MPI_UINT64_T, DONE);
        memset(seen, 0, BYTES);
        talk(step);
        MPI_Barrier(WORLD);
        MPI_File_read_at(file, ((step + 3) % 8 * size + beside) * BYTES, seen, MANY, MPI_UINT64_T, DONE);
        talk(look(seen, BYTES));
        MPI_Barrier(WORLD);
    }
    MPI_File_close(&file);
}

// Files that are used without MPI.

static void must(long result, const char *what)
{
    CHECK(result >= 0, "%s: %s", what, strerror(errno));
}

static int made(const char *path, int flags)
{
    int fd = open(path, flags, 0666);
    must(fd, path);
    return fd;
}

// Files to which one rank appends all the time; and a log that is rewritten at its beginning.
static void px_append(void)
{
    fclose(fopen(name("append-%d", rank), "w"));
    FILE *log = fopen(name("append-%d", rank), "a");
    FILE *headed = fopen(name("headed-%d", rank), "w+");
    int fd = made(name("fd-%d", rank), O_CREAT | O_WRONLY | O_APPEND | O_TRUNC);
    for (long step = 0; step < steps; step++, rest(step)) {
        fprintf(log, "step %ld total %016llx\n", step, (unsigned long long)total);
        if (step % 3 == 0)
            fflush(log);
        must(write(fd, new_row(), 40), "write");
        fseek(headed, 64 + step * 24, SEEK_SET);
        fprintf(headed, "%016llx", (unsigned long long)total);
        rewind(headed);
        fprintf(headed, "records %ld", step + 1);
        fflush(headed);
        talk(step);
    }
    must(close(fd), "close");
    fclose(log), fclose(headed);
}

static void px_nameless(void)
{
    FILE *file = tmpfile();
    int fd = made(name("nameless-%d", rank), O_CREAT | O_RDWR | O_TRUNC);
    must(unlink(name("nameless-%d", rank)), "unlink");
    for (long step = 0; step < steps; step++, rest(step)) {
        fseek(file, step % 5 * BYTES, SEEK_SET);
        fwrite(new_row(), 8, MANY, file);
        must(pwrite(fd, row, sizeof row, step % 7 * BYTES), "pwrite");
        talk(step);
        fseek(file, 0, SEEK_SET);
        size_t many = fread(seen, 8, 5 * MANY, file);
        must(pread(fd, seen + 5 * MANY, 7 * BYTES, 0), "pread");
        talk(look(seen, 12 * BYTES) + many);
    }
    fclose(file), close(fd);
}

// One file that stays open and is changed in all ways.
static void px_changed(void)
{
    int fd = made(name("changed-%d", rank), O_CREAT | O_RDWR | O_TRUNC);
    for (long step = 0; step < steps; step++, rest(step)) {
        off_t at = (off_t)(mixed(5, (uint64_t)step) % 2000);
        new_row();
        struct iovec parts[] = {{row, 100}, {row + 20, 60}};
        switch (step % 6) {
        case 0: must(ftruncate(fd, at), "ftruncate"); break;
        case 1: must(pwritev(fd, parts, 2, at), "pwritev"); break;
        case 2: must(fallocate(fd, 0, at, 300), "fallocate"); break;
        case 3: lseek(fd, 0, SEEK_END); must(write(fd, row, 77), "write"); break;
        case 4: must(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, 200), "punch"); break;
        default: {
            off_t from = 0, to = at;
            must(copy_file_range(fd, &from, fd, &to, at < 300 ? (size_t)at : 300, 0), "copy_file_range");
        }
        }
        talk(step);
        struct stat what;
        must(fstat(fd, &what), "fstat");
        memset(seen, 0, sizeof seen);
        must(pread(fd, seen, sizeof seen, 0), "pread");
        talk(look(seen, sizeof seen) + (uint64_t)what.st_size);
    }
    close(fd);
}

static void px_mapped(void)
{
    int fd = made(name("mapped-%d", rank), O_CREAT | O_RDWR | O_TRUNC);
    must(ftruncate(fd, 16384), "ftruncate");
    uint64_t *map = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED, "mmap");
    if (rank % 2)
        close(fd);
    for (long step = 0; step < steps; step++, rest(step)) {
        memcpy(map + step * 31 % 2000, new_row(), 40);
        talk(step);
        map[step % 2000] ^= total;
        talk(look(map, 16384));
    }
    munmap(map, 16384);
}

// Two descriptors of one file, one that only writes and one that only reads, and a copy of one.
static void px_two(void)
{
    const char *path = name("two-%d", rank);
    int out = made(path, O_CREAT | O_WRONLY | O_TRUNC), in = made(path, O_RDONLY), copy = dup(out);
    for (long step = 0; step < steps; step++, rest(step)) {
        must(write(step % 2 ? out : copy, new_row(), 100), "write");
        talk(step);
        long got = read(in, seen, 150);
        must(got, "read");
        talk(look(seen, (size_t)got));
        if (step % 13 == 12)
            lseek(in, 0, SEEK_SET);
    }
    close(out), close(in), close(copy);
}

// As px_two, but places are overwritten.
static void px_two_again(void)
{
    const char *path = name("again-%d", rank);
    int out = made(path, O_CREAT | O_WRONLY | O_TRUNC), in = made(path, O_RDONLY);
    for (long step = 0; step < steps; step++, rest(step)) {
        must(pwrite(out, new_row(), 100, step * 50 % 700), "pwrite");
        talk(step);
        memset(seen, 0, 1000);
        must(pread(in, seen, 1000, 0), "pread");
        talk(look(seen, 1000));
    }
    close(out), close(in);
}

// A database that is read, changed and written back while it is open.
static void px_base(void)
{
    FILE *file = fopen(name("base-%d", rank), "w+");
    must(file ? 0 : -1, "base");
    for (int i = 0; i < 20; i++)
        fwrite(row, 8, 16, file);
    for (long step = 0; step < steps; step++, rest(step)) {
        long at = (long)(mixed(total, 3) % 20) * 128;
        fseek(file, at, SEEK_SET);
        CHECK(fread(seen, 8, 16, file) == 16, "short");
        talk(look(seen, 128));
        for (int i = 0; i < 16; i++)
            seen[i] = mixed(seen[i], total);
        fseek(file, at, SEEK_SET);
        fwrite(seen, 8, 16, file);
        if (step % 2)
            fflush(file);
    }
    fclose(file);
}

// A log of all ranks: it may have lines twice, and misses none. (The test compares it as a set.)
static void px_common(void)
{
    int fd = made(name("common.set"), O_CREAT | O_WRONLY | O_APPEND);
    char line[80];
    for (long step = 0; step < steps; step++, rest(step)) {
        int bytes = snprintf(line, sizeof line, "rank %d step %ld %016llx\n", rank, step, (unsigned long long)total);
        must(write(fd, line, (size_t)bytes), "write");
        talk(step);
    }
    close(fd);
}

// Each rank has a place of a file that all have open.
static void px_places(void)
{
    int fd = made(name("places"), O_CREAT | O_RDWR);
    FILE *stream = fopen(name("stream"), "a+");
    fclose(stream);
    MPI_Barrier(WORLD);
    stream = fopen(name("stream"), "r+");
    for (long step = 0; step < steps; step++, rest(step)) {
        must(pwrite(fd, new_row(), sizeof row, (step * size + rank) * BYTES), "pwrite");
        fseek(stream, (step * size + rank) * 64, SEEK_SET);
        fwrite(row, 1, 64, stream);
        fflush(stream);
        talk(step);
    }
    close(fd), fclose(stream);
}

// Rank 0 writes each version of a file under a new name and removes the last but two; all others read it once.
static void px_versions(void)
{
    for (long step = 0; step < steps; step++, rest(step)) {
        if (rank == 0) {
            FILE *file = fopen(name("version-%ld.tmp", step), "w");
            fwrite(new_row(), 8, MANY, file);
            fclose(file);
            must(rename(name("version-%ld.tmp", step), name("version-%ld", step)), "rename");
        }
        MPI_Barrier(WORLD);
        FILE *file = fopen(name("version-%ld", step), "r");
        must(file ? 0 : -1, "version");
        CHECK(fread(seen, 8, MANY, file) == MANY, "short");
        fclose(file);
        talk(look(seen, BYTES));
    }
}

// As checkpoints of a program: written beside, and renamed when all have written theirs. Nothing is read.
static void px_replaces(void)
{
    for (long step = 0; step < steps; step++, rest(step)) {
        const char *temporary = name("state-%d.tmp", rank), *state = name("state-%d", rank);
        FILE *file = fopen(temporary, "w");
        must(file ? 0 : -1, temporary);
        fwrite(new_row(), 8, MANY, file);
        fclose(file);
        if (step % 2)
            talk(step);
        must(rename(temporary, state), "rename");
        talk(step);
    }
}

// Each step has two states: the last one gets another name.
static void px_rotated(void)
{
    for (long step = 0; step < steps; step++, rest(step)) {
        const char *state = name("state-%d", rank), *old = name("state-%d.old", rank);
        if (step > 0)
            must(rename(state, old), "rename");
        int fd = made(state, O_CREAT | O_EXCL | O_RDWR);
        must(write(fd, new_row(), sizeof row), "write");
        close(fd);
        talk(step);
    }
}

// A file that is made, read and removed again and again.
static void px_once(void)
{
    for (long step = 0; step < steps; step++, rest(step)) {
        const char *path = name("once-%d", rank);
        int fd = made(path, O_CREAT | O_EXCL | O_RDWR);
        must(write(fd, new_row(), sizeof row), "write");
        must(pread(fd, seen, sizeof row, 0), "pread");
        close(fd);
        talk(look(seen, BYTES));
        must(unlink(path), "unlink");
        talk(step);
    }
}

// Each step's state is written beside, and gets its name when all have written theirs. None is read.
static void px_numbered(void)
{
    for (long step = 0; step < steps; step++, rest(step)) {
        const char *temporary = name("state-%d.tmp", rank);
        FILE *file = fopen(temporary, "w");
        must(file ? 0 : -1, temporary);
        fwrite(new_row(), 8, MANY, file);
        fclose(file);
        talk(step);
        must(rename(temporary, name("state-%d.%ld", rank, step)), "rename");
        talk(step);
    }
}

// A log that gets a number when it is long enough, and begins anew.
static void px_logs(void)
{
    FILE *file = NULL;
    for (long step = 0; step < steps; step++, rest(step)) {
        if (step % 10 == 0) {
            if (step > 0) {
                fclose(file);
                must(rename(name("log-%d", rank), name("log-%d.%ld", rank, step)), "rename");
            }
            file = fopen(name("log-%d", rank), "w");
            must(file ? 0 : -1, "log");
        }
        fprintf(file, "step %ld total %016llx\n", step, (unsigned long long)total);
        fflush(file);
        talk(step);
    }
    fclose(file);
}

// A lock that nobody else takes, around a short deed.
static void px_lock(void)
{
    for (long step = 0; step < steps; step++, rest(step)) {
        const char *lock = name("lock-%d", rank);
        int fd = made(lock, O_CREAT | O_EXCL | O_WRONLY);
        close(fd);
        errno = 0;
        CHECK(open(lock, O_CREAT | O_EXCL | O_WRONLY, 0600) < 0 && errno == EEXIST, "it is mine");
        FILE *file = fopen(name("locked-%d-%ld", rank, step % 7), "w");
        fwrite(new_row(), 8, MANY, file);
        fclose(file);
        must(unlink(lock), "unlink");
        talk(step);
    }
}

// Written by MPI-IO, and renamed by rank 0 when all have written. Nothing is read.
static void io_numbered(void)
{
    for (long step = 0; step < steps; step++, rest(step)) {
        MPI_File file = opened(name("common.tmp"), BOTH);
        MPI_File_write_at_all(file, rank * BYTES, new_row(), MANY, MPI_UINT64_T, DONE);
        MPI_File_close(&file);
        MPI_Barrier(WORLD);
        if (rank == 0)
            must(rename(name("common.tmp"), name("common.%ld", step)), "rename");
        MPI_Barrier(WORLD);
        talk(step);
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} ways[] = {
#define WAY(name) {#name, name}
    WAY(io_subarray), WAY(io_subarray_again), WAY(io_darray), WAY(io_darray_again), WAY(io_sieve), WAY(io_sieve_again),
    WAY(io_split), WAY(io_nonblocking), WAY(io_turns), WAY(io_ordered), WAY(io_atomic), WAY(io_append), WAY(io_scratch),
    WAY(io_sizes), WAY(io_own), WAY(io_portable), WAY(io_passed), WAY(io_one_way), WAY(io_one_way_anew),
    WAY(px_append), WAY(px_nameless), WAY(px_changed), WAY(px_mapped), WAY(px_two), WAY(px_two_again), WAY(px_base),
    WAY(px_common), WAY(px_places), WAY(px_versions), WAY(px_replaces), WAY(io_two), WAY(io_delayed),
    WAY(px_rotated), WAY(px_once), WAY(px_numbered), WAY(px_logs), WAY(px_lock), WAY(io_numbered),
};

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(WORLD, &rank);
    MPI_Comm_size(WORLD, &size);
    CHECK(argc > 2, "usage: file_ways WAY DIRECTORY [STEPS] [PAUSE_MICROSECONDS]");
    directory = argv[2];
    steps = argument(argc, argv, 3, 60), pause_us = argument(argc, argv, 4, 4000);
    beside = (rank + 1) % size, before = (rank + size - 1) % size;
    total = (uint64_t)rank + 1;
    int found = 0;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (strcmp(ways[i].name, argv[1]) == 0)
            ways[i].run(), found = 1;
    CHECK(found, "no way %s", argv[1]);
    printf("rank %d %s %016llx\n", rank, argv[1], (unsigned long long)total);
    MPI_Finalize();
    return 0;
}
