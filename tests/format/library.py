"""The C library for the tests of the model (include/strait/codec.h): page lists in memory, and codecs; and what was expected
and did not come."""
import collections
import ctypes as ct
import os
import sys

import numpy as np

import model as fm

STATUS = {None: 0, "invalid": -1, "no memory": -2, "no space": -3, "alignment": -4, "truncated": -5, "corrupt": -6,
          "unsupported": -7, "codebook": -8, "integrity": -9, "page id": -10}
NAMES = {value: name or "ok" for name, value in STATUS.items()}
ALIGNMENT = {fm.BYTES: 1, fm.BF16: 2, fm.FP16: 2, fm.FP32: 4, fm.FP8_E4M3: 1, fm.FP8_E5M2: 1}
GUARD = 0xA5


failures = []
seen = collections.Counter()  # of the model and the library


def expect(condition, what, *details):
    """Counts a failure; prints the first ones."""
    if not condition:
        failures.append(what)
        if len(failures) <= 20:
            print("FAILED:", what, *details)
    return condition


def load(path):
    """The library, whose structs and prototypes are those of Python's binding (python/tests compares these with the headers)."""
    global abi
    os.environ["STRAIT_LIBRARY"] = path
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
    from strait import _abi as abi
    return abi.lib


def aligned(size, alignment=64):
    """A uint8 array of `size` bytes at a multiple of `alignment`."""
    whole = np.full(size + alignment, GUARD, np.uint8)
    skip = -whole.ctypes.data % alignment
    return whole[skip:skip + size]


class Pool:
    """Regions in memory: regions are (page bytes, table), every region has id_count pages of the list."""

    def __init__(self, rng, regions, id_count, element):
        self.id_count, step = id_count, ALIGNMENT[element]
        page_count = id_count + int(rng.integers(0, 3))
        self.ids = (ct.c_uint32 * id_count)(*rng.permutation(page_count)[:id_count].tolist())
        identity = all(i == x for i, x in enumerate(self.ids))
        self.array, self.buffers, self.shapes = np.zeros(len(regions), abi.REGION), [], []
        for r, (length, table) in enumerate(regions):
            rows = int(rng.choice([n for n in (1, 1, 1, 2, 4, 8, 64) if length % (n * step) == 0 or n == 1]))
            row_stride = self.stride(rng, length // rows, step)
            page_stride = self.stride(rng, row_stride * (rows - 1) + length // rows, step)
            skip = step * int(rng.integers(0, 9))
            buffer = aligned(skip + page_stride * page_count + 8)
            self.array[r] = (buffer.ctypes.data + skip, page_stride, row_stride, page_count, rows, length // rows, table, 0, 0)
            self.buffers.append(buffer)
            self.shapes.append((skip, page_stride, row_stride, rows, length // rows))
        ids = None if identity and rng.random() < 0.5 else ct.addressof(self.ids)
        self.pages = abi.Pages(self.array.ctypes.data, ids, len(regions), id_count)
        self.count = len(regions) * id_count

    @staticmethod
    def stride(rng, size, step):
        return fm.ceil_div(size, step) * step + step * int(rng.integers(0, 5)) * int(rng.integers(0, 2))

    def spans(self, page):
        """Where the rows of a page of the list are: slices of its region's buffer."""
        region, i = divmod(page, self.id_count)
        skip, page_stride, row_stride, rows, row_bytes = self.shapes[region]
        start = skip + self.ids[i] * page_stride
        return self.buffers[region], [slice(start + r * row_stride, start + r * row_stride + row_bytes)
                                      for r in range(rows)]

    def write(self, page, data):
        buffer, spans = self.spans(page)
        source = np.frombuffer(data, np.uint8).reshape(len(spans), -1)
        for span, row in zip(spans, source):
            buffer[span] = row

    def read(self, page):
        buffer, spans = self.spans(page)
        return b"".join(buffer[span].tobytes() for span in spans)

    def untouched(self, written):
        """Nothing but the pages of `written` has changed since the pool was made."""
        kept = [buffer.copy() for buffer in self.buffers]
        for page in written:
            for span in self.spans(page)[1]:
                kept[page // self.id_count][span] = GUARD
        return all((buffer == GUARD).all() for buffer in kept)


class Codec:
    """One variant of the library."""
    statuses = (ct.c_int32 * fm.CHUNK_PAGES_MAX)()

    def __init__(self, lib, name):
        self.lib, self.name = lib, name
        self.handle = lib.strait_codec_get(name.encode())
        self.scratch = aligned(lib.strait_scratch_size(self.handle)) if self.handle else None
        self.stats = np.zeros(8, abi.CLASS_STATS)

    def run(self, result, with_scratch):
        self.stats[:] = 0
        run = abi.Run(size=ct.sizeof(abi.Run), result=ct.pointer(result), page_status=ct.addressof(self.statuses),
                      page_status_count=len(self.statuses), class_stats=self.stats.ctypes.data, class_count=len(self.stats))
        if with_scratch:
            run.scratch, run.scratch_size = self.scratch.ctypes.data, len(self.scratch)
        return run

    def encode(self, pool, element, asked, codebook, with_scratch=False):
        """(returned, result, chunk)"""
        capacity = self.lib.strait_encode_bound(pool.pages)
        chunk = aligned(capacity + 64)
        result = abi.Result()
        params = abi.EncodeParams(ct.sizeof(abi.EncodeParams), element, abi.MODES[asked], codebook)
        returned = self.lib.strait_encode(self.handle, params, chunk.ctypes.data, capacity, pool.pages,
                                          self.run(result, with_scratch))
        expect((chunk[capacity:] == GUARD).all(), "encode wrote beyond its capacity", self.name)
        return returned, result, chunk[:result.bytes].tobytes()

    def decode(self, chunk, codebook, pool, select=None, with_scratch=False):
        """(returned, result, page statuses)"""
        result, source = abi.Result(), self.source(chunk)
        chosen = (ct.c_uint32 * len(select))(*select) if select is not None else None
        returned = self.lib.strait_decode(self.handle, codebook, pool.pages, chosen, source.ctypes.data, len(chunk),
                                          self.run(result, with_scratch))
        return returned, result, self.statuses[:pool.count]

    def verify(self, chunk, codebook, count):
        result, source = abi.Result(), self.source(chunk)
        returned = self.lib.strait_verify(self.handle, codebook, source.ctypes.data, len(chunk),
                                          self.run(result, False))
        return returned, result, self.statuses[:count]

    @staticmethod
    def source(chunk):
        """The bytes at the end of their own allocation, so that a sanitizer sees reads beyond them."""
        return np.frombuffer(bytes(chunk) or b"\0", np.uint8).copy()


def create_codebook(lib, tables):
    handle = ct.c_void_p()
    rankings = np.ascontiguousarray(tables.exponent)
    status = lib.strait_codebook_create(rankings.ctypes.data, None, len(tables), ct.byref(handle))
    expect(status == 0, "strait_codebook_create", status)
    expect(ct.string_at(lib.strait_codebook_id(handle), 16) == tables.id, "set id")
    return handle
