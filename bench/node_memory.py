# SPDX-License-Identifier: Apache-2.0
"""Counters that a rank keeps in the node memory; the offsets are those of crates/wire/src/node_memory.rs."""

import os
import struct

FD = 31  # of the node memory in every rank
MAGIC = b"RESURGO1"
VERSION = 32
CONTROL_BASE, CONTROL_STRIDE = 4096, 8192
FIELDS = {"incarnation": 0, "replay_deliveries": 800, "first_delivery_ns": 808, "caught_up_ns": 816}


class NodeMemory:
    """The node memory of a running job, opened through one of its ranks; it stays readable when that rank is gone."""

    def __init__(self, pid):
        self.fd = os.open(f"/proc/{pid}/fd/{FD}", os.O_RDONLY)
        magic, version = struct.unpack("<8sI", os.pread(self.fd, 12, 0))
        assert (magic, version) == (MAGIC, VERSION), f"bench/node_memory.py is not for version {version}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)

    def get(self, rank, field):
        place = CONTROL_BASE + rank * CONTROL_STRIDE + FIELDS[field]
        return struct.unpack("<Q", os.pread(self.fd, 8, place))[0]

    @property
    def bytes(self):
        """Memory in use."""
        return os.fstat(self.fd).st_blocks * 512
