"""Checkpoints by section 8 of kernels/FORMAT.md alone: folders read and written with no code of the library.

A tensor is (dtype, shape, values): the name of its type, a tuple, and the bytes of its values as one uint8 array of the
shape plus the bytes of a value. Messages are read and written here field by field (checkpoint/checkpoint.proto)."""

import struct
from pathlib import Path

import model as fm
import numpy as np

VALUE_BYTES = {
    "BF16": 2,
    "F16": 2,
    "F32": 4,
    "F64": 8,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I8": 1,
    "I16": 2,
    "I32": 4,
    "I64": 8,
    "U8": 1,
    "U16": 2,
    "U32": 4,
    "U64": 8,
    "BOOL": 1,
    "C64": 8,
    "BYTES": 1,
}
ELEMENTS = {"BF16": fm.BF16, "F16": fm.FP16, "F32": fm.FP32, "F8_E4M3": fm.FP8_E4M3, "F8_E5M2": fm.FP8_E5M2}
ALIGNMENT, TAIL, DIMS_MAX, NAME_MAX, RANKS_MAX = 4096, 48, 16, 4096, 1 << 20
require = fm.require


def element_of(dtype):
    return ELEMENTS.get(dtype, fm.BYTES)


# ---- Messages

VARINT, FIXED64, BYTES = 0, 1, 2
#: Field: name, wire type, whether it is repeated.
SHARD = {
    1: ("name", BYTES, False),
    2: ("dtype", BYTES, False),
    3: ("shape", VARINT, True),
    4: ("offsets", VARINT, True),
    5: ("sizes", VARINT, True),
    6: ("first_chunk", VARINT, False),
    7: ("first_page", VARINT, False),
    8: ("page_bytes", VARINT, False),
    9: ("rounded_from", VARINT, False),
    10: ("file", VARINT, False),
    11: ("first_byte", VARINT, False),
}
CHUNK = {
    1: ("offset", VARINT, False),
    2: ("bytes", VARINT, False),
    3: ("pages", VARINT, False),
    4: ("metadata_sum", FIXED64, False),
}
FILE = {
    1: ("rank", VARINT, False),
    2: ("rank_count", VARINT, False),
    3: ("save_id", BYTES, False),
    4: ("chunks", CHUNK, True),
    5: ("shards", SHARD, True),
}
ENTRY = {1: ("name", BYTES, False), 2: ("bytes", VARINT, False), 3: ("footer_sum", BYTES, False)}
ATTACHMENT = {1: ("name", BYTES, False), 2: ("data", BYTES, False)}
INDEX = {
    1: ("save_id", BYTES, False),
    2: ("committed_ns", VARINT, False),
    3: ("files", ENTRY, True),
    4: ("shards", SHARD, True),
    5: ("attachments", ATTACHMENT, True),
}


def put_varint(number):
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def write_message(fields, message):
    """The message's bytes; zeroes and empty strings of single fields are left out, lists of numbers are packed."""
    out = b""
    for number, (name, kind, repeated) in sorted(fields.items()):
        value = message.get(name, [] if repeated else None)
        if repeated and kind == VARINT:
            packed = b"".join(put_varint(item) for item in value)
            out += put_varint(number << 3 | BYTES) + put_varint(len(packed)) + packed if value else b""
            continue
        for item in value if repeated else [value] if value else []:
            if kind == VARINT:
                out += put_varint(number << 3) + put_varint(item)
            elif kind == FIXED64:
                out += put_varint(number << 3 | FIXED64) + struct.pack("<Q", item)
            else:
                data = write_message(kind, item) if isinstance(kind, dict) else item
                out += put_varint(number << 3 | BYTES) + put_varint(len(data)) + data
    return out


class Wire:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, size):
        require(size <= len(self.data) - self.at)
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self):
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number & (1 << 64) - 1
            require(shift < 70)


def read_message(fields, data):
    wire, message = (
        Wire(data),
        {name: [] if repeated else 0 if kind in (VARINT, FIXED64) else b"" for name, kind, repeated in fields.values()},
    )
    while wire.at < len(data):
        tag = wire.varint()
        number, kind = tag >> 3, tag & 7
        require(number != 0 and kind in (0, 1, 2, 5))
        raw = wire.varint() if kind == 0 else wire.take({1: 8, 5: 4}[kind]) if kind != 2 else wire.take(wire.varint())
        if number not in fields:
            continue
        name, wanted, repeated = fields[number]
        if repeated and wanted == VARINT and kind == 2:
            packed = Wire(raw)
            while packed.at < len(raw):
                message[name].append(packed.varint())
            continue
        require(kind == (BYTES if isinstance(wanted, dict) else wanted))
        value = (
            struct.unpack("<Q", raw)[0]
            if wanted == FIXED64
            else read_message(wanted, raw)
            if isinstance(wanted, dict)
            else raw
        )
        if repeated:
            message[name].append(value)
        else:
            message[name] = (
                value & 0xFFFFFFFF if wanted == VARINT and name not in ("offset", "committed_ns", "bytes") else value
            )
    return message


# ---- Shards


def text(raw):
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise fm.FormatError("corrupt") from None
    require(1 <= len(raw) <= NAME_MAX and "\0" not in name)
    return name


class Shard:
    """A shard as a message has it, checked as far as it alone tells."""

    def __init__(self, message):
        self.name, self.dtype = text(message["name"]), message["dtype"].decode("latin-1")
        require(self.dtype in VALUE_BYTES)
        self.value = VALUE_BYTES[self.dtype]
        self.shape = tuple(message["shape"])
        require(len(self.shape) <= DIMS_MAX)
        self.offsets = tuple(message["offsets"]) or (0,) * len(self.shape)
        self.sizes = tuple(message["sizes"]) or self.shape
        require(len(self.offsets) == len(self.sizes) == len(self.shape))
        require(all(at + size <= whole for at, size, whole in zip(self.offsets, self.sizes, self.shape, strict=True)))
        self.bytes = self.value
        for size in self.sizes:
            self.bytes *= size
        self.rounded_from, self.file = message["rounded_from"], message["file"]
        self.place = tuple(message[key] for key in ("first_chunk", "first_page", "first_byte", "page_bytes"))
        self.first_chunk, self.first_page, self.first_byte, self.page_bytes = self.place
        if not self.stored:
            require(self.place == (0, 0, 0, 0))
            return
        require(self.page_bytes > 0 and self.page_bytes % 64 == 0 and self.page_bytes <= fm.PAGE_BYTES_MAX)
        require(self.first_byte % self.value == 0)
        require(self.first_byte == 0 or self.first_byte + self.bytes <= self.page_bytes)

    @property
    def stored(self):
        return self.bytes > 0 and self.rounded_from == 0

    @property
    def pages(self):
        return fm.ceil_div(self.bytes, self.page_bytes)

    def key(self):
        return (self.name, self.dtype, self.shape, self.offsets, self.sizes, self.place, self.rounded_from)


def check_roundings(shards):
    """Of one file."""
    for shard in shards:
        if shard.rounded_from:
            require(shard.rounded_from <= len(shards))
            source = shards[shard.rounded_from - 1]
            require((shard.dtype, source.dtype, source.rounded_from) == ("BF16", "F32", 0))
            require((shard.shape, shard.offsets, shard.sizes) == (source.shape, source.offsets, source.sizes))


def rounded(values):
    """BF16 of F32, both as bytes of values."""
    bits = np.ascontiguousarray(values).view("<u4").astype(np.uint64)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    nearest = bits + 0x7FFF + (bits >> 16 & 1) >> 16
    return np.where(nan, bits >> 16 | 0x40, nearest).astype("<u2").view(np.uint8)


# ---- Reading


def sum128(data):
    """As files hold it: low 64 bits, high 64 bits."""
    return fm.xxh3_128(data).to_bytes(16, "little")


def read_file(data, entry, rank, index):
    """The bytes of each shard of a rank's file; a FormatError where there is any fault."""
    require(len(data) >= ALIGNMENT + TAIL, "truncated")
    require(data[-8:] == b"STRFEND2", "truncated")
    require(struct.unpack("<Q", data[-16:-8])[0] == fm.xxh3_64(data[-48:-16]), "integrity")
    footer_at, length = struct.unpack("<QQ", data[-48:-32])
    require(footer_at % ALIGNMENT == 0 and footer_at >= ALIGNMENT and footer_at + length + TAIL == len(data))
    head = data[:ALIGNMENT]
    require(head[:4] == b"STRF")
    require(head[4] == 2, "unsupported")
    require(struct.unpack("<Q", head[24:32])[0] == fm.xxh3_64(head[:24]), "integrity")
    require(not any(head[5:8]) and not any(head[32:]))
    message = data[footer_at : footer_at + length]
    require(sum128(message) == data[-32:-16], "integrity")
    require(len(data) == entry["bytes"] and data[-32:-16] == entry["footer_sum"], "integrity")
    footer = read_message(FILE, message)
    require(footer["save_id"] == head[8:24] == index["save_id"])
    require((footer["rank"], footer["rank_count"]) == (rank, len(index["files"])))
    shards = [Shard(one) for one in footer["shards"]]
    check_roundings(shards)
    own = [shard for shard in index["shards"] if shard.file == rank]
    require([shard.key() for shard in shards] == [shard.key() for shard in own])
    chunks, end = [], ALIGNMENT
    for chunk in footer["chunks"]:
        require(chunk["offset"] % ALIGNMENT == 0 and end <= chunk["offset"] <= footer_at - chunk["bytes"])
        end = chunk["offset"] + chunk["bytes"]
        chunks.append(data[chunk["offset"] : end])
    return read_shards(shards, chunks, footer["chunks"])


def read_shards(shards, chunks, told):
    pages, elements, first = [], [], []
    for chunk, row in zip(chunks, told, strict=True):
        error, decoded = fm.decode_chunk(chunk)
        require(error is None, error)
        header = fm.parse_header(chunk)
        require(header.id == fm.NO_CODEBOOK and header.pages == len(decoded) == row["pages"])
        require(struct.unpack("<Q", chunk[40:48])[0] == row["metadata_sum"], "integrity")
        first.append(len(pages))
        for status, page in decoded:
            require(status is None, status)
            pages.append(page)
            elements.append(header.element)
    users, found = {}, []
    for shard in shards:
        if not shard.stored:
            found.append(b"")
            continue
        require(shard.first_chunk < len(chunks) and shard.first_page < told[shard.first_chunk]["pages"])
        begin = first[shard.first_chunk] + shard.first_page
        require(begin + shard.pages <= len(pages))
        require(all(element == element_of(shard.dtype) for element in elements[begin : begin + shard.pages]))
        shared = shard.bytes < shard.page_bytes
        for page in range(begin, begin + shard.pages):
            users.setdefault(page, []).append((shard.first_byte, shard.bytes, shared))
        data = b"".join(pages[begin : begin + shard.pages])
        if shared:
            require(shard.first_byte + shard.bytes <= len(data))
            data = data[shard.first_byte : shard.first_byte + shard.bytes]
        else:
            lengths = [len(page) for page in pages[begin : begin + shard.pages]]
            require(all(length == shard.page_bytes for length in lengths[:-1]) and len(data) == shard.bytes)
        found.append(data)
    for page_users in users.values():
        require(len(page_users) == 1 or all(shared for *_, shared in page_users))
    return [
        rounded(np.frombuffer(found[shard.rounded_from - 1], np.uint8)).tobytes()
        if shard.rounded_from and shard.bytes
        else data
        for shard, data in zip(shards, found, strict=True)
    ]


def read_index(data):
    require(len(data) >= 32, "truncated")
    require(data[:4] == b"STCI")
    require(data[4] == 1, "unsupported")
    require(not any(data[5:8]))
    length = struct.unpack("<Q", data[8:16])[0]
    require(length + 32 < 1 << 63)
    require(len(data) - 32 >= length, "truncated")
    require(len(data) - 32 == length)
    require(sum128(data[32:]) == data[16:32], "integrity")
    index = read_message(INDEX, data[32:])
    require(len(index["save_id"]) == 16 and 1 <= len(index["files"]) <= RANKS_MAX)
    for rank, entry in enumerate(index["files"]):
        require(entry["name"] == b"%05d.strait" % rank and len(entry["footer_sum"]) == 16)
    index["shards"] = [Shard(one) for one in index["shards"]]
    files = [shard.file for shard in index["shards"]]
    require(files == sorted(files) and all(file < len(index["files"]) for file in files))
    for rank in range(len(index["files"])):
        check_roundings([shard for shard in index["shards"] if shard.file == rank])
    for one in index["attachments"]:
        text(one["name"])
    return index


def read_folder(folder):
    """({name: (dtype, shape, values)}, {attachment: bytes}, index). A FormatError where anything is wrong."""
    folder, tensors, covered = Path(folder), {}, {}
    index = read_index((folder / "strait.index").read_bytes())
    for shard in index["shards"]:
        form = tensors.setdefault(
            shard.name, (shard.dtype, shard.shape, np.zeros((*shard.shape, VALUE_BYTES[shard.dtype]), np.uint8))
        )
        require(form[:2] == (shard.dtype, shard.shape))
        covered.setdefault(shard.name, np.zeros(shard.shape, bool))
    for rank, entry in enumerate(index["files"]):
        own = [shard for shard in index["shards"] if shard.file == rank]
        found = read_file((folder / entry["name"].decode()).read_bytes(), entry, rank, index)
        for shard, data in zip(own, found, strict=True):
            box = tuple(slice(at, at + size) for at, size in zip(shard.offsets, shard.sizes, strict=True))
            tensors[shard.name][2][box] = np.frombuffer(data, np.uint8).reshape(*shard.sizes, shard.value)
            covered[shard.name][box] = True
    require(all(one.all() for one in covered.values()))
    return tensors, {text(one["name"]): one["data"] for one in index["attachments"]}, index


# ---- Writing


class Writer:
    """A rank's file as it grows. Chunks end where `rng` says."""

    def __init__(self, rng, save_id):
        self.rng, self.save_id, self.chunks, self.shards = rng, save_id, [], []
        self.pages, self.element, self.open = [], None, 0
        self.data = bytearray(ALIGNMENT)
        self.data[:24] = b"STRF\2\0\0\0" + save_id
        self.data[24:32] = struct.pack("<Q", fm.xxh3_64(bytes(self.data[:24])))

    def end_chunk(self):
        if not self.pages:
            return
        asked = str(self.rng.choice(["raw", "base", "parts"]))
        chunk = fm.encode_chunk([bytes(page) for page in self.pages], [0] * len(self.pages), None, self.element, asked)
        self.data += bytes(-len(self.data) % ALIGNMENT)
        self.chunks.append(
            {
                "offset": len(self.data),
                "bytes": len(chunk),
                "pages": len(self.pages),
                "metadata_sum": struct.unpack("<Q", chunk[40:48])[0],
            }
        )
        self.data += chunk
        self.pages, self.open = [], 0

    def add(self, message, data, page_bytes):
        """Adds a stored shard; a small one goes into the page that the small ones before have begun, if it fits."""
        element, value = element_of(message["dtype"].decode()), VALUE_BYTES[message["dtype"].decode()]
        if element != self.element or self.rng.integers(8) == 0:
            self.end_chunk()
        self.element, small = element, len(data) < page_bytes
        if small and self.open:
            last = self.pages[-1]
            at = fm.ceil_div(len(last), value) * value
            if at + len(data) <= self.open:
                last += bytes(at - len(last)) + data
                place = (len(self.chunks), len(self.pages) - 1, at, self.open)
                return self.append(message, place)
        place = (len(self.chunks), len(self.pages), 0, page_bytes)
        for begin in range(0, len(data), page_bytes):
            if begin > 0 and self.rng.integers(8) == 0:
                self.end_chunk()
            self.pages.append(bytearray(data[begin : begin + page_bytes]))
        self.open = page_bytes if small else 0
        return self.append(message, place)

    def append(self, message, place=(0, 0, 0, 0)):
        message.update(zip(("first_chunk", "first_page", "first_byte", "page_bytes"), place, strict=True))
        self.shards.append(message)

    def finish(self, rank, rank_count):
        self.end_chunk()
        self.data += bytes(-len(self.data) % ALIGNMENT)
        footer = write_message(
            FILE,
            {
                "rank": rank,
                "rank_count": rank_count,
                "save_id": self.save_id,
                "chunks": self.chunks,
                "shards": self.shards,
            },
        )
        tail = struct.pack("<QQ", len(self.data), len(footer)) + sum128(footer)
        self.data += footer + tail + struct.pack("<Q", fm.xxh3_64(tail)) + b"STRFEND2"
        return bytes(self.data), sum128(footer)


def split(rng, offsets, sizes, pieces):
    """Boxes that cover a box, cut at random."""
    dims = [d for d, size in enumerate(sizes) if size > 1]
    if pieces <= 1 or not dims:
        return [(offsets, sizes)]
    d = int(rng.choice(dims))
    first = 1 + int(rng.integers(sizes[d] - 1))
    left, right = list(sizes), list(sizes)
    left[d], right[d] = first, sizes[d] - first
    behind = list(offsets)
    behind[d] += first
    return split(rng, offsets, tuple(left), pieces // 2) + split(rng, tuple(behind), tuple(right), pieces - pieces // 2)


def write_folder(
    folder, rng, tensors, ranks, *, roundings=None, attachments=None, save_id=bytes(range(16)), committed_ns=1
):
    """Writes a checkpoint of tensors, in random shards of random pages. roundings: {name of BF16: name of F32}."""
    folder, roundings = Path(folder), roundings or {}
    folder.mkdir()
    writers = [Writer(rng, save_id) for _ in range(ranks)]
    for name, (dtype, shape, values) in tensors.items():
        if name in roundings:
            continue
        for offsets, sizes in split(rng, (0,) * len(shape), shape, 1 + int(rng.integers(6))):
            box = tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))
            data = np.ascontiguousarray(values[box]).tobytes()
            for rank in rng.permutation(ranks)[: 1 + int(rng.integers(4) == 0)]:
                write_shard(writers[rank], rng, name, (dtype, shape, offsets, sizes), data, roundings)
    files = [writer.finish(rank, ranks) for rank, writer in enumerate(writers)]
    index = {
        "save_id": save_id,
        "committed_ns": committed_ns,
        "files": [
            {"name": b"%05d.strait" % rank, "bytes": len(data), "footer_sum": total}
            for rank, (data, total) in enumerate(files)
        ],
        "shards": [shard | {"file": rank} for rank, writer in enumerate(writers) for shard in writer.shards],
        "attachments": [{"name": name.encode(), "data": data} for name, data in (attachments or {}).items()],
    }
    message = write_message(INDEX, index)
    (folder / "strait.index").write_bytes(b"STCI\1\0\0\0" + struct.pack("<Q", len(message)) + sum128(message) + message)
    for rank, (data, _) in enumerate(files):
        (folder / f"{rank:05}.strait").write_bytes(data)


def write_shard(writer, rng, name, form, data, roundings):
    dtype, shape, offsets, sizes = form
    message = {
        "name": name.encode(),
        "dtype": dtype.encode(),
        "shape": list(shape),
        "offsets": list(offsets) if any(offsets) else [],
        "sizes": list(sizes) if sizes != shape else [],
    }
    if not data:
        return writer.append(message)
    writer.add(message, data, 64 * (1 + int(rng.integers(300))))
    place = len(writer.shards)
    for of in (key for key, source in roundings.items() if source == name):
        writer.append(message | {"name": of.encode(), "dtype": b"BF16", "rounded_from": place})
