# SPDX-License-Identifier: Apache-2.0
"""User-Level Failure Mitigation for mpi4py programs that `resurgo run --ft` runs.

mpi4py has methods of these names, which work with Open MPI only. Here they work with an unmodified MPICH 5:

    from resurgo import ft

    comm = ft.Intracomm(MPI.COMM_WORLD)
    comm.Set_errhandler(MPI.ERRORS_RETURN)      # errors are exceptions, MPI.Exception
    try:
        comm.Barrier()
    except MPI.Exception as error:
        if error.Get_error_class() not in ft.FAILURES:
            raise
        comm.Revoke()
        comm = comm.Shrink()

Checkpoints in the memory of ranks bring back what lost ranks had:

    ft.protect(0, x)                            # a NumPy array, or any writable buffer
    comm.Checkpoint(step)
    ...                                         # a failure; comm.Shrink(), or new ranks
    step = comm.Restore()                       # x is as it was; None: there is no checkpoint

The functions of this module take any communicator of mpi4py. Communicators that an `Intracomm` makes by `Dup`, `Clone`,
`Create`, `Create_group`, `Split`, `Split_type` and `Shrink` have the methods, too.
"""

import ctypes
import functools

from mpi4py import MPI

ERR_PROC_FAILED = 101
ERR_PROC_FAILED_PENDING = 102
ERR_REVOKED = 103
#: The classes of errors that a failure can have.
FAILURES = (ERR_PROC_FAILED, ERR_PROC_FAILED_PENDING, ERR_REVOKED)

_LIBRARY = ctypes.CDLL(None)


def _call(name, comm, *values):
    function = getattr(_LIBRARY, name, None)
    if function is None:
        raise NotImplementedError(f"{name} is in libresurgo-ft.so, which is not in this process: use resurgo run --ft")
    code = function(ctypes.c_uint(comm.handle), *values)
    if code:
        raise MPI.Exception(code)


def revoke(comm):
    """Brings back every rank that is blocked in the communicator, now and later."""
    _call("MPIX_Comm_revoke", comm)


def is_revoked(comm):
    """Whether that has happened."""
    flag = ctypes.c_int()
    _call("MPIX_Comm_is_revoked", comm, ctypes.byref(flag))
    return flag.value != 0


def shrink(comm):
    """A communicator of the ranks that live, of the same class. All of these call it."""
    new = ctypes.c_uint()
    _call("MPIX_Comm_shrink", comm, ctypes.byref(new))
    return type(comm)(MPI.Comm.fromhandle(new.value))


def agree(comm, flag=~0):
    """The bits that all living ranks have set; each of them calls it.

    Raises:
        MPI.Exception: some rank has failed, and not all others have acknowledged it. All raise the same. Their bits
        are its attribute `flag`.
    """
    bits = ctypes.c_int(flag)
    try:
        _call("MPIX_Comm_agree", comm, ctypes.byref(bits))
    except MPI.Exception as error:
        error.flag = bits.value
        raise
    return bits.value


def iagree(comm, flag):
    """The same, as a request. `flag` is a writable buffer of one C int, with the bits; it must live until the request
    has ended."""
    request = ctypes.c_uint()
    _call("MPIX_Comm_iagree", comm, ctypes.byref(ctypes.c_int.from_buffer(flag)), ctypes.byref(request))
    return MPI.Request.fromhandle(request.value)


def ishrink(comm):
    """What `shrink` returns, which is good when the request has ended, and the request."""
    new, request = type(comm)(), ctypes.c_uint()
    _call("MPIX_Comm_ishrink", comm, ctypes.c_void_p(MPI._addressof(new)), ctypes.byref(request))
    return new, MPI.Request.fromhandle(request.value)


def get_failed(comm):
    """The group of members that have failed."""
    group = ctypes.c_uint()
    _call("MPIX_Comm_get_failed", comm, ctypes.byref(group))
    return MPI.Group.fromhandle(group.value)


def ack_failed(comm, num_to_ack=None):
    """Acknowledges so many of them, at first those that failed first; None: all. Returns how many are acknowledged."""
    if num_to_ack is None:
        group = get_failed(comm)
        num_to_ack = group.size
        group.Free()
    acknowledged = ctypes.c_int()
    _call("MPIX_Comm_ack_failed", comm, ctypes.c_int(num_to_ack), ctypes.byref(acknowledged))
    return acknowledged.value


#: What makes up for lost data: copies at other ranks, or parity.
PARTNER, PARITY = 0, 1
_NOTHING, _LOST = 201, 202
_protected = {}


class Lost(Exception):
    """More is lost of the last checkpoint than it covers. All ranks raise it."""


def _ask(name, *values):
    """Calls a function of checkpoints. Without the library there are none."""
    function = getattr(_LIBRARY, name, None)
    code = _NOTHING if function is None else function(*values)
    if code == _LOST:
        raise Lost("more is lost of the last checkpoint than it covers")
    if code not in (0, _NOTHING):
        raise MPI.Exception(code)
    return code == 0


def _bytes(buffer):
    """The bytes of a contiguous buffer that can be written: something that holds them, their address, and their number."""
    view = memoryview(buffer)
    if not view.c_contiguous and not view.f_contiguous:
        raise ValueError("the buffer is not contiguous")
    held = (ctypes.c_char * view.nbytes).from_buffer(view.cast("B")) if view.nbytes else None
    return held, ctypes.c_void_p(ctypes.addressof(held) if held else None), ctypes.c_int64(view.nbytes)


def protect(id, buffer):
    """This buffer belongs to the checkpoints that follow, under a number of the program's choice, from 0. The same number
    again names another buffer. It lives until it is unprotected."""
    held, address, count = _bytes(buffer)
    _ask("resurgo_ft_protect", ctypes.c_int(id), address, count, ctypes.c_uint(MPI.BYTE.handle))
    _protected[id] = held


def unprotect(id=None):
    """None: all."""
    _ask("resurgo_ft_unprotect", ctypes.c_int(-1 if id is None else id))
    if id is None:
        _protected.clear()
    else:
        _protected.pop(id, None)


def checkpoint(comm, version=0, scheme=PARTNER, losses=1):
    """Keeps a copy of all that is protected, and makes up for so many losses. All members call it. The checkpoint before
    it stays until all have the new one. Without `resurgo run --ft` nothing is kept."""
    numbers = map(ctypes.c_int, (version, scheme, losses))
    _ask("resurgo_ft_checkpoint", ctypes.c_uint(comm.handle), *numbers)


def _version_of(name, comm):
    version = ctypes.c_int()
    return version.value if _ask(name, ctypes.c_uint(comm.handle), ctypes.byref(version)) else None


def restore(comm):
    """Makes the last checkpoint whole again, fills what is protected from it, and returns its version; None: there is
    no checkpoint. All members call it. Numbers that this rank did not protect then come from the first that did.

    Raises:
        Lost: more is lost than the checkpoint covers.
    """
    return _version_of("resurgo_ft_restore", comm)


def find(comm):
    """The first half of `restore`: nothing of the program's is written. Then `stored` and `inherited` have answers."""
    return _version_of("resurgo_ft_find", comm)


def stored(id, rank=MPI.ANY_SOURCE):
    """How many bytes the checkpoint has of this number and rank, or of the rank that `restore` would take; None: there
    are none."""
    size = ctypes.c_int64(-1)
    _ask("resurgo_ft_size", ctypes.c_int(rank), ctypes.c_int(id), ctypes.byref(size))
    return None if size.value < 0 else size.value


def inherited():
    """The numbers, then, of lost ranks whose data this rank keeps now, as nobody has taken their place."""
    count, ranks = ctypes.c_int(), (ctypes.c_int * 4096)()
    _ask("resurgo_ft_inherited", ctypes.c_int(4096), ranks, ctypes.byref(count))
    return ranks[: count.value]


def read(comm, rank, id, buffer):
    """Reads what the checkpoint that was found has of this rank and number. All members call it; with MPI.PROC_NULL,
    and None for a buffer, one reads nothing."""
    held, address, count = _bytes(bytearray() if buffer is None else buffer)
    numbers = ctypes.c_uint(comm.handle), ctypes.c_int(rank), ctypes.c_int(id)
    _ask("resurgo_ft_read", *numbers, address, count, ctypes.c_uint(MPI.BYTE.handle))
    del held


class Intracomm(MPI.Intracomm):
    """A communicator with the methods that mpi4py documents for these functions."""

    Revoke = revoke
    Is_revoked = is_revoked
    Shrink = shrink
    Ishrink = ishrink
    Agree = agree
    Iagree = iagree
    Get_failed = get_failed
    Ack_failed = ack_failed
    Checkpoint = checkpoint
    Restore = restore
    Find = find
    Read = read

    def _same(self, comm):
        return comm if comm == MPI.COMM_NULL else type(self)(comm)

    def Split(self, color=0, key=0):
        return self._same(super().Split(color, key))

    def Split_type(self, split_type, key=0, info=MPI.INFO_NULL):
        return self._same(super().Split_type(split_type, key, info))

    def Create(self, group):
        return self._same(super().Create(group))

    def Create_group(self, group, tag=0):
        return self._same(super().Create_group(group, tag))

    # mpi4py does these with messages in a communicator of its own, which nobody can revoke.

    def allreduce(self, sendobj, op=MPI.SUM):
        return functools.reduce(op, self.allgather(sendobj))

    def reduce(self, sendobj, op=MPI.SUM, root=0):
        everything = self.gather(sendobj, root)
        return None if everything is None else functools.reduce(op, everything)

    def scan(self, sendobj, op=MPI.SUM):
        return functools.reduce(op, self.allgather(sendobj)[: self.rank + 1])

    def exscan(self, sendobj, op=MPI.SUM):
        before = self.allgather(sendobj)[: self.rank]
        return functools.reduce(op, before) if before else None
