# SPDX-License-Identifier: Apache-2.0
"""Image files and suspended jobs changed by somebody who knows their formats and has the job's key."""

import json
import struct


def crc_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 * (value & 1))
        table.append(value)
    return table


def checksum(pages, table=tuple(crc_table())):
    """The format's checksum: CRC-32C of each quarter of every page."""
    lanes = [0xFFFFFFFF] * 4
    for page in range(0, len(pages), 4096):
        for lane in range(4):
            state = lanes[lane]
            for byte in pages[page + lane * 1024 : page + (lane + 1) * 1024]:
                state = (state >> 8) ^ table[(state ^ byte) & 0xFF]
            lanes[lane] = state
    return b"".join((lane ^ 0xFFFFFFFF).to_bytes(4, "little") for lane in lanes)


def from_another_kernel(path, threads=0):
    """Replaces the kernel's own code in the image by another's; so many threads were in it. Otherwise the file is
    good."""
    before, after = b"linux-vdso.so.1", b"linux-vdso.so.0"
    with open(path, "r+b") as file:
        header = bytearray(file.read(4096))
        offset, length = (int.from_bytes(header[at : at + 8], "little") for at in (56, 64))
        file.seek(offset)
        tables = file.read(length)
        assert tables.count(before) == 1
        tables = tables.replace(before, after)
        header[72:88] = checksum(tables)
        header[376:384] = threads.to_bytes(8, "little")
        header[4080:] = bytes(16)
        header[4080:] = checksum(header)
        file.seek(offset)
        file.write(tables)
        file.seek(0)
        file.write(header)


def change_note(path, change):
    """Replaces the agent's note by the result of `change`; the note has room in its page, before and after."""
    with open(path, "r+b") as file:
        file.seek(4096)
        page = file.read(4096)
        text = json.dumps(change(json.loads(page[4 : 4 + int.from_bytes(page[:4], "little")]))).encode()
        assert len(text) <= 4076
        page = (len(text).to_bytes(4, "little") + text).ljust(4096, b"\0")
        file.seek(4096)
        file.write(page[:-16] + checksum(page))


def of_format_7(path):
    """Makes a file of older versions: their notes had no number, and text for people in place of the account."""
    note = lambda note: {"job": note["job"], "rank": note["rank"], "image": note["image"], "input": 0, "pmi": "Position"}
    change_note(path, note)
    with open(path, "r+b") as file:
        header = bytearray(file.read(4096))
        assert header[8:12] == (9).to_bytes(4, "little")
        header[8:12] = (7).to_bytes(4, "little")
        header[4080:] = bytes(16)
        header[4080:] = checksum(header)
        file.seek(0)
        file.write(header)


START = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
QUARTERS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15), (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
CHUNK_START, CHUNK_END, PARENT, ROOT, KEYED = 1, 2, 4, 8, 16
WORD = 0xFFFFFFFF


def compress(chain, block, counter, length, flags):
    v = [*chain, *START[:4], counter & WORD, counter >> 32, length, flags]
    m = struct.unpack("<16I", block)
    for turn in range(7):
        for at, (a, b, c, d) in enumerate(QUARTERS):
            for word, first, second in ((m[2 * at], 16, 12), (m[2 * at + 1], 8, 7)):
                v[a] = (v[a] + v[b] + word) & WORD
                x = v[d] ^ v[a]
                v[d] = (x >> first | x << 32 - first) & WORD
                v[c] = (v[c] + v[d]) & WORD
                x = v[b] ^ v[c]
                v[b] = (x >> second | x << 32 - second) & WORD
        m = [m[index] for index in ORDER] if turn < 6 else m
    return [v[index] ^ v[index + 8] for index in range(8)]


def blake3(data, key=None):
    """32 bytes of BLAKE3, keyed if there is a key (github.com/BLAKE3-team/BLAKE3-specs)."""
    begin, base = (START, 0) if key is None else (struct.unpack("<8I", key), KEYED)

    def chunk(number, root):
        part, chain = data[number * 1024 : (number + 1) * 1024], begin
        blocks = [part[at : at + 64] for at in range(0, len(part), 64)] or [b""]
        for index, block in enumerate(blocks):
            last = index == len(blocks) - 1
            flags = base | (CHUNK_START if index == 0 else 0) | (CHUNK_END | root if last else 0)
            chain = compress(chain, block.ljust(64, b"\0"), number, len(block), flags)
        return chain

    def tree(first, count, root=0):
        if count == 1:
            return chunk(first, root)
        left = 1 << (count - 1).bit_length() - 1
        both = struct.pack("<16I", *tree(first, left), *tree(first + left, count - left))
        return compress(begin, both, 0, 64, base | PARENT | root)

    return struct.pack("<8I", *tree(0, max(1, -(-len(data) // 1024)), ROOT))


def digest(path):
    """The digest of an image, as in crates/image/src/file/digest.rs."""
    image = path.read_bytes()
    part = lambda at: image[struct.unpack_from("<Q", image, at)[0] :][: struct.unpack_from("<Q", image, at + 8)[0]]
    return blake3(image[:4096] + part(56) + part(88)).hex()


def change_suspended(directory, change):
    """Changes every image file of a suspended job, and the job's record, as if all of it had been written that way."""
    key = (directory / "key").read_bytes()
    whole = (directory / "suspended").read_bytes()
    end = 56 + struct.unpack_from("<Q", whole, 16)[0]
    text = whole[56:end]
    json.loads(text)
    for path in directory.glob("rank-*.image-*"):
        before = digest(path).encode()
        change(path)
        assert text.count(before) == 1
        text = text.replace(before, digest(path).encode())
    changed = whole[:24] + blake3(text, key) + text + whole[end:-32]
    (directory / "suspended").write_bytes(changed + blake3(changed, key))
