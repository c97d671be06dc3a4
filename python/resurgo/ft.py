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

FT-MPI's names are those of C. A failure is an error of the class MPI.ERR_OTHER, and `Dup` rebuilds:

    world = ft.Intracomm(MPI.COMM_WORLD)        # resurgo run --ft-mode shrink; also after it was rebuilt
    try:
        world.Barrier()
    except MPI.Exception as error:
        if error.Get_error_class() != MPI.ERR_OTHER:
            raise
        world.Dup()
        print(world.size, world.Get_attr(ft.FTMPI_FAILED_PROCS))

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


#: FT-MPI's attributes of a communicator: modes, which `set_attr` sets; its state; failures of members.
FTMPI_COMM_MODE = 0x7F465400
FTMPI_MSG_MODE = 0x7F465401
FTMPI_COMM_STATE = 0x7F465402
FTMPI_NUM_FAILED_PROCS = 0x7F465403
FTMPI_FAILED_PROCS = 0x7F465404
FTMPI_FAILED_AT = 0x7F465405
FTMPI_FAILED_CODES = 0x7F465406
FTMPI_PROC_STATES = 0x7F465407
FTMPI_COLL_MODE = 0x7F465408
#: What a communicator with a failed member becomes when it is rebuilt.
FTMPI_COMM_MODE_ABORT = 0
FTMPI_COMM_MODE_BLANK = 1
FTMPI_COMM_MODE_SHRINK = 2
FTMPI_COMM_MODE_REBUILD = 3
FTMPI_COMM_MODE_REBUILD_SHRINK = 4
#: What becomes of messages between survivors until then: every call is an error, or they go on.
FTMPI_MSG_MODE_NOP, FTMPI_MSG_MODE_CONT = 0, 1
#: How collective calls end: at each rank in its own way, or for all alike.
FTMPI_COLL_MODE_LOOSE, FTMPI_COLL_MODE_STRICT = 0, 1
#: States of a communicator.
FT_OK, FT_DETECTED, FT_RECOVER, FT_RECOVERED, FT_FAILED = range(5)
#: States of a process.
FT_PROC_OK, FT_PROC_UNAVAILABLE, FT_PROC_JOINING, FT_PROC_FAILED = range(4)
#: What `init_status` is in a rank that is in the place of a failed one.
INIT_RESTARTED_NODE = 0x7F4654F0

_OF_FAILURES = {FTMPI_FAILED_PROCS: ctypes.c_int, FTMPI_FAILED_AT: ctypes.c_double, FTMPI_FAILED_CODES: ctypes.c_int}


def _attr(comm, key, kind, length=1):
    """The values that MPI_Comm_get_attr points to."""
    place, is_there = ctypes.c_void_p(), ctypes.c_int()
    _call("MPI_Comm_get_attr", comm, ctypes.c_int(key), ctypes.byref(place), ctypes.byref(is_there))
    return list((kind * length).from_address(place.value))


def get_attr(comm, keyval):
    """The value of one of FT-MPI's attributes: a number, or a list with one for each failure or member. Other keys are
    those of mpi4py's Get_attr."""
    if keyval in _OF_FAILURES:
        number = get_attr(comm, FTMPI_NUM_FAILED_PROCS)
        return _attr(comm, keyval, _OF_FAILURES[keyval], number)
    if keyval == FTMPI_PROC_STATES:
        return _attr(comm, keyval, ctypes.c_int, comm.Get_size())
    if FTMPI_COMM_MODE <= keyval <= FTMPI_COLL_MODE:
        return _attr(comm, keyval, ctypes.c_int)[0]
    return MPI.Comm.Get_attr(comm, keyval)


def set_attr(comm, keyval, value):
    """Sets one of FT-MPI's modes; all members set the same."""
    if FTMPI_COMM_MODE <= keyval <= FTMPI_COLL_MODE:
        _call("MPI_Comm_set_attr", comm, ctypes.c_int(keyval), ctypes.c_void_p(value))
    else:
        MPI.Comm.Set_attr(comm, keyval, value)


def init_status():
    """INIT_RESTARTED_NODE in a rank that FT-MPI's mode REBUILD has started in the place of a failed one; else
    MPI.SUCCESS. It is what MPI_Init returns in C; mpi4py calls that when it is imported."""
    function = getattr(_LIBRARY, "resurgo_ft_is_restarted", None)
    return INIT_RESTARTED_NODE if function is not None and function() else MPI.SUCCESS


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
    Get_attr = get_attr
    Set_attr = set_attr
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
