// SPDX-License-Identifier: Apache-2.0
// Offsets of open files: read, write, lseek, a duplicate that shares one, appending, a file whose name is gone, a directory.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "image.h"

int main(int argc, char **argv)
{
    start(&argc, &argv);
    char folder[] = "files0", path[64];
    folder[5] = (char)('0' + rank);
    mkdir(folder, 0700);
    uint32_t numbers[ROUNDS];
    for (int i = 0; i < ROUNDS; i++)
        numbers[i] = (uint32_t)mixed(1, (uint64_t)i);
    snprintf(path, sizeof path, "%s/input", folder);
    int file = WORKS(open(path, O_RDWR | O_CREAT | O_TRUNC, 0600));
    WORKS(write(file, numbers, sizeof numbers));
    close(file);
    int input = WORKS(open(path, O_RDONLY | O_CLOEXEC));
    FILE *stream = fopen(path, "r");
    CHECK(stream != NULL, "%s", strerror(errno));
    snprintf(path, sizeof path, "%s/output", folder);
    int output = WORKS(open(path, O_RDWR | O_CREAT | O_TRUNC, 0600)), same = WORKS(dup(output));
    snprintf(path, sizeof path, "%s/log", folder);
    int append = WORKS(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600));
    snprintf(path, sizeof path, "%s/gone", folder);
    int gone = WORKS(open(path, O_RDWR | O_CREAT | O_EXCL, 0600));
    unlink(path);
    for (char name = 'a'; name <= 'j'; name++) {
        snprintf(path, sizeof path, "%s/entry-%c", folder, name);
        close(WORKS(open(path, O_CREAT | O_WRONLY, 0600)));
    }
    DIR *directory = opendir(folder);
    int path_only = WORKS(open(folder, O_PATH | O_DIRECTORY));
    uint64_t hash = FNV_START, names = 0;
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t number, again;
        CHECK(read(input, &number, 4) == 4 && number == numbers[i], "round %d: the offset is wrong", i);
        CHECK(fread(&again, 4, 1, stream) == 1 && again == number, "round %d: the stream's place is wrong", i);
        CHECK(lseek(same, 0, SEEK_CUR) == i * 8, "round %d: the shared offset is %ld", i, (long)lseek(same, 0, SEEK_CUR));
        WORKS(write(i % 2 ? output : same, &number, 4));
        WORKS(write(i % 2 ? same : output, &i, 4));
        CHECK(fcntl(append, F_GETFL) & O_APPEND, "round %d: O_APPEND is gone", i);
        WORKS(write(append, "x", 1));
        CHECK(pwrite(gone, &number, 4, i * 4) == 4, "round %d", i);
        CHECK(pread(gone, &again, 4, i / 2 * 4) == 4 && again == numbers[i / 2], "round %d: the deleted file", i);
        CHECK(fcntl(input, F_GETFD) == FD_CLOEXEC && fcntl(output, F_GETFD) == 0, "round %d: FD_CLOEXEC", i);
        if (i % 10 == 0)
            for (struct dirent *entry = readdir(directory); entry; entry = readdir(directory))
                if (entry->d_name[0] == 'e') {
                    names = names * 31 + (uint64_t)entry->d_name[6];
                    break;
                }
        if (i % 100 == 99)
            rewinddir(directory);
        CHECK(faccessat(path_only, "input", F_OK, 0) == 0, "round %d: O_PATH: %s", i, strerror(errno));
        hash = hash_bytes(hash, &number, 4);
        step(hash, 0.015);
    }
    struct stat about;
    WORKS(fstat(output, &about));
    CHECK(about.st_size == ROUNDS * 8, "%ld bytes were written", (long)about.st_size);
    CHECK(names != 0, "the directory was not read");
    return finish("files", hash);
}
