# SPDX-License-Identifier: Apache-2.0
"""Reads traces as Perfetto does: a small reader of protocol buffers, and the few messages of
perfetto/protos/perfetto/trace that it needs. It shares nothing with the writer."""

import struct

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

TRACK_EVENT_TYPES = {1: "begin", 2: "end", 3: "moment"}


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(data):
    """The fields of a message: number and value, in order."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = varint(data, at)
        elif kind == FIXED64:
            value, at = data[at : at + 8], at + 8
        elif kind == BYTES:
            length, at = varint(data, at)
            value, at = data[at : at + length], at + length
            assert len(value) == length, "a message is cut off"
        else:
            assert kind == FIXED32, f"wire type {kind}"
            value, at = data[at : at + 4], at + 4
        yield number, value


def signed(value):
    return value - (1 << 64) if value >> 63 else value


def annotation(data):
    """DebugAnnotation: name 10, bool 2, uint 3, int 4, double 5, string 6."""
    name = value = None
    for number, field in fields(data):
        match number:
            case 10:
                name = field.decode()
            case 2:
                value = bool(field)
            case 3:
                value = field
            case 4:
                value = signed(field)
            case 5:
                (value,) = struct.unpack("<d", field)
            case 6:
                value = field.decode()
    assert name is not None and value is not None
    return name, value


def track_event(data):
    event = {"categories": [], "args": {}, "flows": [], "ends": []}
    for number, field in fields(data):
        match number:
            case 4:
                name, value = annotation(field)
                event["args"][name] = value
            case 9:
                event["type"] = TRACK_EVENT_TYPES[field]
            case 11:
                event["track"] = field
            case 22:
                event["categories"].append(field.decode())
            case 23:
                event["name"] = field.decode()
            case 47:
                event["flows"].append(int.from_bytes(field, "little"))
            case 48:
                event["ends"].append(int.from_bytes(field, "little"))
            case _:
                raise AssertionError(f"field {number} of a TrackEvent")
    return event


def descriptor(data):
    """TrackDescriptor: uuid 1, name 2, process 3 (pid 1, process_name 6), parent_uuid 5."""
    track = {"name": None, "parent": None}
    for number, field in fields(data):
        match number:
            case 1:
                track["uuid"] = field
            case 2:
                track["name"] = field.decode()
            case 3:
                process = dict(fields(field))
                track["pid"], track["name"] = process[1], process[6].decode()
            case 5:
                track["parent"] = field
            case _:
                raise AssertionError(f"field {number} of a TrackDescriptor")
    return track


class Trace:
    """`spans`: slices and instants, each with owner ("rank 2"), track ("MPI"), name, category, begin, end (none: an
    instant) and args."""

    def __init__(self, path):
        packets = []
        tracks = {}
        for number, data in fields(path.read_bytes()):
            assert number == 1, "Trace has packets only"
            packet = dict(fields(data))
            assert packet[10] > 0, "Perfetto leaves out packets without a sequence"
            if 60 in packet:
                track = descriptor(packet[60])
                tracks[track["uuid"]] = track
            else:
                packets.append((packet[8], track_event(packet[11])))
        packets.sort(key=lambda packet: packet[0])
        self.spans = []
        open_ones = {}
        for time, event in packets:
            track = tracks[event["track"]]
            stack = open_ones.setdefault(event["track"], [])
            if event["type"] == "end":
                stack.pop()["end"] = time
                continue
            span = {
                "owner": tracks[track["parent"]]["name"],
                "track": track["name"],
                "name": event["name"],
                "category": event["categories"][0],
                "begin": time,
                "end": None,
                "args": event["args"],
                "flows": event["flows"],
                "ends": event["ends"],
            }
            self.spans.append(span)
            if event["type"] == "begin":
                stack.append(span)
        assert not any(open_ones.values()), "all that begins ends"

    def of(self, owner, **wanted):
        """The spans of an owner with these properties, by time."""
        return [span for span in self.spans if span["owner"] == owner and all(span[key] == value for key, value in wanted.items())]

    def messages(self, rank, kind=("send", "receive"), category="message"):
        """`kind`: the beginning of their names."""
        return [span for span in self.of(f"rank {rank}", category=category) if span["name"].startswith(kind)]
