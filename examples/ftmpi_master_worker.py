# SPDX-License-Identifier: Apache-2.0
"""The master and workers of master_worker.py by FT-MPI's rules (modes BLANK and CONT).

    resurgo run --ft-mode blank,cont -n 4 python ftmpi_master_worker.py [TASKS [POINTS]]

Each task throws POINTS random points at a square and counts those in its circle; together they give pi. A task has
random numbers of its own, so that its result does not depend on the worker. Put your own work into compute().

With CONT messages between the others go on after a failure, so nothing is rebuilt: a lost worker leaves a gap. A
receive from any rank tells the master of each failure once, and an attribute says who is lost.

- The task of a lost worker goes to another worker.
- When all workers are lost, the master computes the rest.
- When the master (rank 0) is lost, the job ends: the results were in its memory.
"""

import sys

from mpi4py import MPI
from resurgo import ft

MASTER = 0
TASK, RESULT, STOP = 1, 2, 3  # tags of messages

tasks, points = [*map(int, sys.argv[1:]), *(200, 4000)[len(sys.argv) - 1 :]]
comm = ft.Intracomm(MPI.COMM_WORLD)


def must_be_a_failure(error):
    """Any other error than the loss of a process is a mistake in the program."""
    if error.Get_error_class() != MPI.ERR_OTHER:
        print(f"ftmpi_master_worker: {error}", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Abort(1)


def compute(task):
    """The work of one task."""
    hits, random = 0, 1 + task * 7919 % 2147483646
    for _ in range(points):
        random = random * 16807 % 2147483647
        x = random / 2147483647.0
        random = random * 16807 % 2147483647
        y = random / 2147483647.0
        hits += x * x + y * y < 1.0
    return hits


class Master:
    def __init__(self):
        self.waiting = list(range(tasks))[::-1]  # tasks that no worker has
        self.hits = {}  # the result of each task that is done
        self.task_of = {worker: None for worker in range(1, comm.size)}  # of each worker that lives; None: it is idle

    def give(self, worker):
        """The next task for an idle worker, if there is one."""
        if self.task_of.get(worker, "lost") is not None or not self.waiting:
            return
        self.task_of[worker] = self.waiting.pop()
        try:
            comm.send(self.task_of[worker], worker, TASK)
        except MPI.Exception as error:
            must_be_a_failure(error)  # we need not deal with it here: the next receive tells us

    def look_for_the_lost(self):
        """Finds the workers that were lost since last time, and gives their tasks to others."""
        states = comm.Get_attr(ft.FTMPI_PROC_STATES)
        for worker in [worker for worker in self.task_of if states[worker] != ft.FT_PROC_OK]:
            task = self.task_of.pop(worker)
            if task is not None:
                self.waiting.append(task)
            left = len(self.task_of)
            print(f"ftmpi_master_worker: worker {worker} is lost; {left} are left", file=sys.stderr, flush=True)
        for worker in self.task_of:
            self.give(worker)

    def run(self):
        for worker in self.task_of:
            self.give(worker)
        status = MPI.Status()
        while len(self.hits) < tasks:
            if not self.task_of:
                task = self.waiting.pop()
                result = compute(task)
            else:
                try:
                    task, result = comm.recv(None, MPI.ANY_SOURCE, RESULT, status)
                except MPI.Exception as error:
                    must_be_a_failure(error)
                    self.look_for_the_lost()
                    continue
                # This may be the last message of a worker that is lost by now. give() sends such a worker nothing.
                if status.source in self.task_of:
                    self.task_of[status.source] = None
                    self.give(status.source)
            # A lost worker's task goes to another although its result may still arrive. So it may come twice.
            self.hits.setdefault(task, result)
        for worker in self.task_of:
            try:
                comm.send(None, worker, STOP)
            except MPI.Exception as error:
                must_be_a_failure(error)
        hits = sum(self.hits.values())
        pi = 4.0 * hits / (tasks * points)
        print(f"ftmpi_master_worker: {hits} of {tasks * points} points in {tasks} tasks: pi is about {pi:.6f}", flush=True)


def work():
    status = MPI.Status()
    while True:
        task = comm.recv(None, MASTER, MPI.ANY_TAG, status)
        if status.tag == STOP:
            return
        comm.send((task, compute(task)), MASTER, RESULT)


# From now on failures are exceptions. Otherwise the first loss would end the job.
comm.Set_errhandler(MPI.ERRORS_RETURN)
try:
    comm.Barrier()  # all ranks have begun
except MPI.Exception as error:
    must_be_a_failure(error)  # one is lost already; the master will see that
if comm.rank == MASTER:
    print(f"ftmpi_master_worker: {tasks} tasks for {comm.size - 1} workers", file=sys.stderr, flush=True)
    Master().run()
else:
    try:
        work()
    except MPI.Exception as error:
        must_be_a_failure(error)
        end = "the master is lost, and all results with it; the job ends"
        print(f"ftmpi_master_worker: rank {comm.rank}: {end}", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Abort(3)
