# SPDX-License-Identifier: Apache-2.0
"""What survivors, and a new rank, read of modes, states and failures by FT-MPI's rules, in Python. Somebody kills rank 1
of five when rank 0 is ready.

    python ftmpi_states.py FTMPI_COMM_MODE FTMPI_MSG_MODE
"""

import sys
import time

from mpi4py import MPI
from resurgo import ft

mode, messages = map(int, sys.argv[1:])
world = ft.Intracomm(MPI.COMM_WORLD)


def check(right, what):
    if not right:
        print(f"WRONG: rank {world.rank}: {what}", flush=True)
        MPI.COMM_WORLD.Abort(3)


def look_back():
    """The failure, before and after rebuilding, and at a new rank."""
    check(world.Get_attr(ft.FTMPI_NUM_FAILED_PROCS) == 1, "number")
    check(world.Get_attr(ft.FTMPI_FAILED_PROCS) == [1], "rank")
    check(world.Get_attr(ft.FTMPI_FAILED_CODES) == [137], "exit code")
    (when,) = world.Get_attr(ft.FTMPI_FAILED_AT)
    check(abs(when - time.time()) < 600, "time")


def before():
    modes = world.Get_attr(ft.FTMPI_COMM_MODE), ft.get_attr(MPI.COMM_WORLD, ft.FTMPI_MSG_MODE)
    check(modes == (mode, messages), "modes")
    check(world.Get_attr(ft.FTMPI_COMM_STATE) == ft.FT_OK, "whole")
    check(world.Get_attr(ft.FTMPI_NUM_FAILED_PROCS) == 0 and world.Get_attr(ft.FTMPI_FAILED_PROCS) == [], "no failures")
    check(world.Get_attr(ft.FTMPI_PROC_STATES) == [ft.FT_PROC_OK] * 5, "members")
    check(world.Get_attr(MPI.TAG_UB) >= 32767, "an attribute of MPI")
    try:
        world.Set_attr(ft.FTMPI_COMM_MODE, 99)
        check(False, "no such mode")
    except MPI.Exception as error:
        check(error.Get_error_class() == MPI.ERR_ARG, "no such mode")
    world.Set_attr(ft.FTMPI_COLL_MODE, ft.FTMPI_COLL_MODE_STRICT)
    check(world.Get_attr(ft.FTMPI_COLL_MODE) == ft.FTMPI_COLL_MODE_STRICT, "strict")
    world.Barrier()
    ft.set_attr(MPI.COMM_WORLD, ft.FTMPI_COLL_MODE, ft.FTMPI_COLL_MODE_LOOSE)


def broken():
    check(world.Get_attr(ft.FTMPI_COMM_STATE) == ft.FT_DETECTED, "broken")
    states = [ft.FT_PROC_OK, ft.FT_PROC_FAILED, *[ft.FT_PROC_OK] * 3]
    check(world.Get_attr(ft.FTMPI_PROC_STATES) == states, "who has failed")
    look_back()


def rebuilt():
    is_blank, most = mode == ft.FTMPI_COMM_MODE_BLANK, 4 if mode == ft.FTMPI_COMM_MODE_SHRINK else 5
    check(world.size == most and world.Get_attr(ft.FTMPI_COMM_STATE) == ft.FT_RECOVERED, "whole again")
    look_back()
    states = [ft.FT_PROC_OK] * most
    if is_blank:
        states[1] = ft.FT_PROC_FAILED
    check(world.Get_attr(ft.FTMPI_PROC_STATES) == states, "members")
    everyone = world.allgather(world.rank) if not is_blank else None
    check(is_blank or everyone == list(range(most)), "ranks")
    if is_blank:
        try:
            world.send(1, 1)
            check(False, "a gap")
        except MPI.Exception as error:
            check(error.Get_error_class() == MPI.ERR_RANK, "a gap")


is_new = ft.init_status() == ft.INIT_RESTARTED_NODE
check(world.size == 5 and (is_new or ft.init_status() == MPI.SUCCESS), "beginning")
if is_new:
    print(f"new {world.rank}", flush=True)
else:
    before()
    if world.rank == 0:
        print("ready", flush=True)
    try:
        world.recv(source=0 if world.rank == 1 else 1)
        check(False, "a message of nobody")
    except MPI.Exception as error:
        check(error.Get_error_class() == MPI.ERR_OTHER, "class")
    broken()
    check(world.Dup() == MPI.COMM_WORLD, "rebuilding")
rebuilt()
print(f"right {world.rank}", flush=True)
