# SPDX-License-Identifier: Apache-2.0
"""The test programs, with arguments for a quick run and for a run that is long enough for kills."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    name: str
    quick: tuple = ()
    longer: tuple = ()
    least: int = 1  # of ranks
    most: int = 16
    square: bool = False  # runs only on square numbers of ranks
    result: bool = False  # writes a file, named by {file} in the arguments
    debian: bool = False  # asks for libmpich.so.12
    same_as_plain: bool = True  # plain MPICH prints the same

    def __str__(self):
        return self.name

    def accepts(self, size):
        return self.least <= size <= self.most and not (self.square and math.isqrt(size) ** 2 != size)


CATALOGUE = [
    Entry("hello", most=16),
    Entry("cg", ("128", "100"), ("512", "400")),
    Entry("cg_abi", ("128", "100"), ("512", "400")),
    Entry("heat", ("128", "128", "500", "{file}"), ("400", "400", "3000", "{file}"), result=True),
    Entry("master_worker", ("1000", "500"), ("20000", "3000"), least=2),
    Entry("transpose", ("32", "20"), ("64", "150")),
    Entry("rma_halo", ("500", "20"), ("1000", "400"), most=8),
    Entry("mpiio", ("{file}", "60", "500"), ("{file}", "600", "2000"), result=True, most=8),
    Entry("comm_churn", ("40",), ("600",)),
    Entry("messages", (), ("4",), most=8),
    Entry("crash", ("99", "kill", "0", "always", "300"), ("99", "kill", "0", "always", "20000")),
    Entry("cg_mpif", (), ("100000", "500"), debian=True),
    Entry("heat_f08", ("120", "200", "{file}"), ("300", "3000", "{file}"), result=True, debian=True),
    Entry("pickles.py", ("20",), ("100",), most=8),
    Entry("numpy_cg.py", ("100", "50"), ("400", "600"), most=8),
    Entry("futures_pi.py", ("60",), ("400",), least=2, most=8),
    Entry("master_worker.py", ("100",), ("1000",), least=2, most=8),
    Entry("bt", ("S",), ("W",), square=True),
    Entry("ft", ("S",), ("W",)),
    Entry("lu", ("S",), ("W",)),
]
BY_NAME = {entry.name: entry for entry in CATALOGUE}


def arguments(entry, longer, file):
    return [part.replace("{file}", str(file)) for part in (entry.longer if longer else entry.quick)]
