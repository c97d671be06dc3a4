# SPDX-License-Identifier: Apache-2.0
"""Nodes with networks of their own (`bench/cluster.py`)."""

import socket
import threading

HEAT = ("heat", 400, 400, 3000)
ANSWER = "hash=9944300e00fe4094"


class Listening:
    """Hears everything that goes through these devices."""

    def __init__(self, devices):
        self.sockets = [socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) for _ in devices]
        for listens, device in zip(self.sockets, devices):
            listens.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
            listens.bind((device, 0))
            listens.settimeout(0.1)
        self.heard = bytearray()
        self.is_over = False
        self.threads = [threading.Thread(target=self.listen, args=[listens]) for listens in self.sockets]

    def listen(self, listens):
        while True:
            try:
                self.heard += listens.recv(1 << 17)
            except TimeoutError:
                if self.is_over:  # and all has been read
                    return

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.is_over = True
        for thread, listens in zip(self.threads, self.sockets):
            thread.join()
            listens.close()
