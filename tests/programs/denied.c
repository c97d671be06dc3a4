// SPDX-License-Identifier: Apache-2.0
// Runs a command in which the kernel refuses one thing, as container runtimes and older kernels do.
//   denied userfaultfd|scan COMMAND...
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define UNLESS(value, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip)
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, what)

int main(int argc, char **argv)
{
    const unsigned pagemap_scan = 0xc0606610;
    struct sock_filter scan[] = {
        LOAD(nr), UNLESS(__NR_ioctl, 3), LOAD(args[1]), UNLESS(pagemap_scan, 1), RETURN(SECCOMP_RET_ERRNO | ENOTTY),
        RETURN(SECCOMP_RET_ALLOW),
    };
    struct sock_filter userfaultfd[] = {
        LOAD(nr), UNLESS(__NR_userfaultfd, 1), RETURN(SECCOMP_RET_ERRNO | EPERM), RETURN(SECCOMP_RET_ALLOW),
    };
    int is_scan = argc > 2 && strcmp(argv[1], "scan") == 0;
    if (argc < 3 || (!is_scan && strcmp(argv[1], "userfaultfd") != 0)) {
        fputs("usage: denied userfaultfd|scan COMMAND...\n", stderr);
        return 2;
    }
    struct sock_fprog program = {
        .len = is_scan ? sizeof scan / sizeof *scan : sizeof userfaultfd / sizeof *userfaultfd,
        .filter = is_scan ? scan : userfaultfd,
    };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        perror("denied");
        return 1;
    }
    execvp(argv[2], argv + 2);
    perror(argv[2]);
    return 1;
}
