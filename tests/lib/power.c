/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded: notes in POWER_LOG, in their order, what a process does to files and directories below POWER_ROOT. What a
 * file is when it is brought to the disk stays in POWER_KEPT, under a number. power.py reads it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX], kept[PATH_MAX];
static int record = -1;

__attribute__((constructor)) static void begin(void)
{
    if (!getenv("POWER_ROOT"))
        return;
    snprintf(root, sizeof root, "%s", getenv("POWER_ROOT"));
    snprintf(kept, sizeof kept, "%s", getenv("POWER_KEPT"));
    record = NEXT(open)(getenv("POWER_LOG"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

static void note(const char *format, ...)
{
    char line[4 * PATH_MAX];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(line, sizeof line, format, values);
    va_end(values);
    if (NEXT(write)(record, line, length) != length)
        abort();
}

/* The root, or below it. */
static int is_ours(const char *path)
{
    size_t length = strlen(root);
    return !strncmp(path, root, length) && (!path[length] || path[length] == '/');
}

/* The path of a descriptor. 0: it is none below the root. */
static int path_of(int fd, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = record < 0 || fd == record ? -1 : readlink(link, path, PATH_MAX - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return is_ours(path);
}

static int path_at(int at, const char *name, char *path)
{
    char above[PATH_MAX] = "";
    if (record < 0)
        return 0;
    if (name[0] != '/' && at == AT_FDCWD && !getcwd(above, sizeof above))
        return 0;
    if (name[0] != '/' && at != AT_FDCWD) {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        ssize_t length = readlink(link, above, sizeof above - 1);
        if (length < 0)
            return 0;
        above[length] = 0;
    }
    snprintf(path, PATH_MAX, name[0] == '/' ? "%s%s" : "%s/%s", above, name);
    return is_ours(path);
}

static int opened(int at, const char *name, int flags, mode_t mode)
{
    char path[PATH_MAX];
    struct stat about;
    if (!(flags & O_CREAT) || !path_at(at, name, path))
        return NEXT(openat)(at, name, flags, mode);
    pthread_mutex_lock(&lock);
    int is_new = fstatat(at, name, &about, AT_SYMLINK_NOFOLLOW);
    int fd = NEXT(openat)(at, name, flags, mode);
    if (fd >= 0 && is_new)
        note("create\t%s\n", path);
    pthread_mutex_unlock(&lock);
    return fd;
}

#define OPEN(name, first, ...)                      \
    int name(first const char *path, int flags, ...) \
    {                                               \
        va_list more;                               \
        va_start(more, flags);                      \
        mode_t mode = va_arg(more, int);            \
        va_end(more);                               \
        return opened(__VA_ARGS__, path, flags, mode); \
    }
#define AT int at,
OPEN(open, , AT_FDCWD)
OPEN(open64, , AT_FDCWD)
OPEN(openat, AT, at)
OPEN(openat64, AT, at)

/* Does CALL, and notes what follows, if it concerns a path below the root. */
#define DONE(is_ours, call, ...)       \
    if (!(is_ours))                    \
        return call;                   \
    pthread_mutex_lock(&lock);         \
    __typeof__(call) result = call;    \
    int error = errno;                 \
    if (result >= 0)                   \
        note(__VA_ARGS__);             \
    pthread_mutex_unlock(&lock);       \
    errno = error;                     \
    return result

ssize_t write(int fd, const void *bytes, size_t length)
{
    char path[PATH_MAX];
    DONE(path_of(fd, path), NEXT(write)(fd, bytes, length), "write\t%s\t%zd\n", path, result);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    char path[PATH_MAX];
    DONE(path_of(fd, path), NEXT(writev)(fd, parts, count), "write\t%s\t%zd\n", path, result);
}

int mkdirat(int at, const char *name, mode_t mode)
{
    char path[PATH_MAX];
    DONE(path_at(at, name, path), NEXT(mkdirat)(at, name, mode), "mkdir\t%s\n", path);
}

int mkdir(const char *name, mode_t mode)
{
    return mkdirat(AT_FDCWD, name, mode);
}

int renameat(int at, const char *name, int to, const char *new)
{
    char path[PATH_MAX], into[PATH_MAX];
    DONE(path_at(at, name, path) && path_at(to, new, into), NEXT(renameat)(at, name, to, new), "rename\t%s\t%s\n", path, into);
}

int rename(const char *name, const char *new)
{
    return renameat(AT_FDCWD, name, AT_FDCWD, new);
}

int unlinkat(int at, const char *name, int flags)
{
    char path[PATH_MAX];
    DONE(path_at(at, name, path), NEXT(unlinkat)(at, name, flags), "remove\t%s\n", path);
}

int unlink(const char *name)
{
    return unlinkat(AT_FDCWD, name, 0);
}

int rmdir(const char *name)
{
    return unlinkat(AT_FDCWD, name, AT_REMOVEDIR);
}

static int synced(int fd, int (*sync)(int))
{
    static int number;
    char path[PATH_MAX], link[64], keep[PATH_MAX + 64];
    struct stat about;
    if (!path_of(fd, path))
        return sync(fd);
    pthread_mutex_lock(&lock);
    int result = sync(fd), error = errno;
    if (!result && !fstat(fd, &about)) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        snprintf(keep, sizeof keep, "%s/%d-%d", kept, getpid(), ++number);
        if (S_ISDIR(about.st_mode))
            note("directory\t%s\n", path);
        else if (about.st_nlink > 0 && linkat(AT_FDCWD, link, AT_FDCWD, keep, AT_SYMLINK_FOLLOW))
            abort();
        else
            note("file\t%s\t%s\n", path, keep);
    }
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}

int fsync(int fd)
{
    return synced(fd, NEXT(fsync));
}

int fdatasync(int fd)
{
    return synced(fd, NEXT(fdatasync));
}
