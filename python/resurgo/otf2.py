# SPDX-License-Identifier: Apache-2.0
"""Turns a trace of ``resurgo run --trace`` into an OTF2 archive, which Vampir, Scalasca and Cube read::

    python -m resurgo.otf2 job.pftrace job.otf2

Needs the package ``otf2`` of the Score-P developers (``pip install otf2``). Each rank is a process of MPI, and each of its
tracks a thread: its calls of MPI, and its lives, with images and replays. Messages that a life repeats are calls without
messages: they were sent and received once. Times are in nanoseconds."""

import argparse
import re
import struct
import sys
from pathlib import Path

# Field numbers of perfetto/protos/perfetto/trace: packet 1; in it time 8, event 11, track 60.
PACKET, TIME, EVENT, TRACK = 1, 8, 11, 60
BEGIN, END = 1, 2
UNKNOWN = "it is no trace of resurgo run --trace, or it is damaged"


class NoTrace(ValueError):
    """The file is not a whole trace of Resurgo."""


def _varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data):
    """Number and value of each field of a message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
            value, at = data[at : at + length], at + length
        elif kind == 2:
            length, at = _varint(data, at)
            value, at = data[at : at + length], at + length
            if len(value) != length:
                raise NoTrace(UNKNOWN)
        else:
            raise NoTrace(UNKNOWN)
        yield key >> 3, value


def _argument(data):
    """Name and value of a DebugAnnotation: name 10, numbers 3 and 4, double 5, text 6."""
    name = value = None
    for number, field in _fields(data):
        if number == 10:
            name = field.decode()
        elif number in (2, 3, 4):
            value = field
        elif number == 5:
            (value,) = struct.unpack("<d", field)
        elif number == 6:
            value = field.decode()
    return name, value


def read(path):
    """Tracks (number to owner and name) and events (time, track, kind, name, category, arguments), by time."""
    names, parents, events = {}, {}, []
    try:
        for number, packet in _fields(Path(path).read_bytes()):
            packet = dict(_fields(packet)) if number == PACKET else {}
            if TRACK in packet:
                track = dict(_fields(packet[TRACK]))
                process = dict(_fields(track[3])) if 3 in track else {}
                names[track[1]] = process.get(6, track.get(2, b"")).decode()
                parents[track[1]] = track.get(5)
            elif EVENT in packet:
                kind = track = None
                name, category, arguments = "", "", {}
                for number, field in _fields(packet[EVENT]):
                    if number == 4:
                        key, value = _argument(field)
                        arguments[key] = value
                    elif number == 9:
                        kind = field
                    elif number == 11:
                        track = field
                    elif number == 22:
                        category = field.decode()
                    elif number == 23:
                        name = field.decode()
                events.append((packet[TIME], track, kind, name, category, arguments))
    except (IndexError, KeyError, UnicodeDecodeError, TypeError) as error:
        raise NoTrace(UNKNOWN) from error
    if not names:
        raise NoTrace(UNKNOWN)
    events.sort(key=lambda event: event[0])
    tracks = {number: (names.get(parents[number], name), name) for number, name in names.items() if parents[number] is not None}
    return tracks, events


def _rank(owner):
    found = re.fullmatch(r"rank (\d+)", owner)
    return int(found[1]) if found else None


class _Archive:
    """Definitions of the archive that is being written."""

    def __init__(self, otf2, trace, tracks):
        define = trace.definitions
        self.otf2, self.define, self.regions, self.writers = otf2, define, {}, {}
        job = define.system_tree_node("job")
        processes = {}
        mains = {}
        for number, (owner, name) in sorted(tracks.items(), key=lambda item: (_rank(item[1][0]) is None, _rank(item[1][0]) or 0, item[1])):
            rank = _rank(owner)
            if owner not in processes:
                processes[owner] = define.location_group(owner, system_tree_parent=job)
            location = define.location(f"{owner}: {name}", group=processes[owner])
            self.writers[number] = trace.event_writer_from_location(location)
            if rank is not None and name == "MPI":
                mains[rank] = location
        locations = [mains[rank] for rank in sorted(mains)]
        self.place = {rank: place for place, rank in enumerate(sorted(mains))}
        kinds, mpi = otf2.GroupType, otf2.Paradigm.MPI
        define.group("MPI", group_type=kinds.COMM_LOCATIONS, paradigm=mpi, members=locations)
        world = define.group("MPI_COMM_WORLD", group_type=kinds.COMM_GROUP, paradigm=mpi, members=locations)
        self.world = define.comm("MPI_COMM_WORLD", group=world) if locations else None

    def region(self, name, category):
        if (name, category) not in self.regions:
            paradigm = self.otf2.Paradigm.MPI if name.startswith("MPI_") else self.otf2.Paradigm.MEASUREMENT_SYSTEM
            shown = f"{name} (replay)" if category == "replay" else name
            self.regions[name, category] = self.define.region(shown, description=category, paradigm=paradigm)
        return self.regions[name, category]

    def message(self, writer, time, name, arguments):
        """Writes a message of the other rank's. False: there is no such rank."""
        peer = self.place.get(arguments.get("peer"))
        if peer is None:
            return False
        tell = writer.mpi_send if name.startswith("send") else writer.mpi_recv
        # A tag of MPI has 32 bits.
        tell(time, peer, self.world, arguments.get("tag", 0) & 0xFFFFFFFF, arguments.get("bytes", 0))
        return True


def convert(path, directory):
    """Writes the archive ``traces.otf2`` into ``directory``, which must not be there yet. Returns how many events it has."""
    tracks, events = read(path)
    import otf2

    count = 0
    with otf2.writer.open(str(directory), timer_resolution=1_000_000_000) as trace:
        archive = _Archive(otf2, trace, tracks)
        within = {number: [] for number in tracks}
        for time, track, kind, name, category, arguments in events:
            if track not in archive.writers:
                continue
            writer, count = archive.writers[track], count + 1
            if kind == BEGIN:
                within[track].append(archive.region(name, category))
                writer.enter(time, within[track][-1])
            elif kind == END:
                if within[track]:
                    writer.leave(time, within[track].pop())
            elif category != "message" or not archive.message(writer, time, name, arguments):
                writer.enter(time, archive.region(name, category))
                writer.leave(time, archive.region(name, category))
    return count


def main():
    parser = argparse.ArgumentParser(prog="python -m resurgo.otf2", description=__doc__.partition("\n")[0])
    parser.add_argument("trace", type=Path, help="what resurgo run --trace has written")
    parser.add_argument("directory", type=Path, nargs="?", help="of the archive; by default TRACE with the ending .otf2")
    options = parser.parse_args()
    directory = options.directory or options.trace.with_suffix(".otf2")
    if directory.exists():
        return f"resurgo.otf2: {directory} is there already: name another directory"
    try:
        count = convert(options.trace, directory)
    except ImportError as error:
        return f"resurgo.otf2: {error}: pip install otf2"
    except (OSError, NoTrace) as error:
        return f"resurgo.otf2: {options.trace}: {error}"
    print(f"{directory / 'traces.otf2'}: {count} events")
    return 0


if __name__ == "__main__":
    sys.exit(main())
