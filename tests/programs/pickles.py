# SPDX-License-Identifier: Apache-2.0
"""Python objects as messages: dicts, sets of strings, nested and large ones; pickled by mpi4py.

    pickles.py [ROUNDS=60]

The order of a set's elements, and so its pickle, follows the process's hash seed: a replay needs the same one.
"""
import hashlib
import random
import sys

from linger import linger
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 60


def thing(owner, number):
    rng = random.Random(owner * 1000 + number)
    return {
        "owner": owner,
        "number": number,
        "words": {f"word {rng.randrange(10**6)}" for _ in range(rng.randrange(50))},
        "tree": [[rng.random() for _ in range(i)] for i in range(rng.randrange(20))],
        "text": "x" * (rng.randrange(100) if number % 10 else 200_000),
        "nothing": None,
    }


digest = hashlib.sha256()
for number in range(rounds):
    linger(number, rounds)
    right, left = (rank + 1) % size, (rank - 1) % size
    request = comm.isend(thing(rank, number), dest=right, tag=number)
    got = comm.recv(source=left, tag=number)
    request.wait()
    assert got == thing(left, number), f"rank {rank}: round {number}"

    root = number % size
    shared = comm.bcast({"root": root, "set": {str(i) for i in range(20)}} if rank == root else None, root=root)
    assert shared["root"] == root and len(shared["set"]) == 20
    gathered = comm.gather((rank, thing(rank, number)["words"]), root=root)
    if rank == root:
        assert [who for who, _ in gathered] == list(range(size))
        assert all(words == thing(who, number)["words"] for who, words in gathered)
    everyone = comm.alltoall([(rank, to, number) for to in range(size)])
    assert everyone == [(who, rank, number) for who in range(size)]
    total = comm.allreduce(frozenset([f"{rank}-{number}"]), op=lambda a, b: a | b)
    assert total == {f"{who}-{number}" for who in range(size)}
    digest.update(repr((got["owner"], got["tree"], sorted(got["words"]), sorted(total))).encode())

digests = comm.gather(digest.hexdigest(), root=0)
if rank == 0:
    print(f"pickles rounds={rounds} {hashlib.sha256(''.join(digests).encode()).hexdigest()}")
