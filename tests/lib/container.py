# SPDX-License-Identifier: Apache-2.0
"""Runs a command with what the default profiles of container engines forbid: python container.py COMMAND…

Their lists name what is allowed; here is what of the rest Resurgo could ask for, with the same answers.
"""

import ctypes
import errno
import os
import struct
import sys

# linux/seccomp.h, linux/bpf_common.h, linux/prctl.h
LOAD, EQUAL, AND, RETURN = 0x20, 0x15, 0x54, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
NO_NEW_PRIVS, SECCOMP, FILTER = 38, 22, 2
NUMBER, FIRST_ARGUMENT = 0, 16  # of struct seccomp_data

FORBIDDEN = {
    "kcmp": 312, "userfaultfd": 323, "pidfd_getfd": 438, "unshare": 272, "setns": 308, "mount": 165, "umount2": 166,
    "pivot_root": 155, "bpf": 321, "perf_event_open": 298, "io_uring_setup": 425, "mbind": 237, "set_mempolicy": 238,
    "move_pages": 279, "keyctl": 250, "open_by_handle_at": 304, "clock_settime": 227,
}
PERSONALITY, CLONE, CLONE3 = 135, 56, 435
PERSONALITIES = [0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF]
NEW_NAMESPACES = 0x7E020000


def instruction(code, value, if_true=0, if_false=0):
    return struct.pack("HBBI", code, if_true, if_false, value)


def program():
    refuse = instruction(RETURN, ERRNO | errno.EPERM)
    allow = instruction(RETURN, ALLOW)
    lines = [instruction(LOAD, NUMBER)]
    for number in FORBIDDEN.values():
        lines += [instruction(EQUAL, number, 0, 1), refuse]
    # Not there at all, so that the C library asks for clone instead, whose flags can be looked at.
    lines += [instruction(EQUAL, CLONE3, 0, 1), instruction(RETURN, ERRNO | errno.ENOSYS)]
    lines += [instruction(EQUAL, CLONE, 0, 5), instruction(LOAD, FIRST_ARGUMENT), instruction(AND, NEW_NAMESPACES),
              instruction(EQUAL, 0, 0, 1), allow, refuse]
    kinds = [instruction(EQUAL, kind, len(PERSONALITIES) - at, 0) for at, kind in enumerate(PERSONALITIES)]
    lines += [instruction(EQUAL, PERSONALITY, 0, len(kinds) + 3), instruction(LOAD, FIRST_ARGUMENT), *kinds, refuse, allow]
    return b"".join([*lines, allow])


def forbid():
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(program())
    length = (len(code) - 1) // 8
    described = struct.pack("HxxxxxxQ", length, ctypes.addressof(code))
    for arguments in ((NO_NEW_PRIVS, 1, 0, 0, 0), (SECCOMP, FILTER, described, 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    forbid()
    os.execvp(sys.argv[1], sys.argv[1:])
