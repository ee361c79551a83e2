"""The C library for the tests of the model (include/strait/codec.h): its structs, page lists in memory, and codecs."""
import ctypes as ct

import numpy as np

import format_model as fm
from format_model_expect import expect

STATUS = {None: 0, "invalid": -1, "no memory": -2, "no space": -3, "alignment": -4, "truncated": -5, "corrupt": -6,
          "unsupported": -7, "codebook": -8, "integrity": -9, "page id": -10}
NAMES = {value: name or "ok" for name, value in STATUS.items()}
ASKED = {"auto": 0, "raw": 1, "top16": 2, "tiered": 3, "base": 4, "split": 5}
ALIGNMENT = {fm.BYTES: 1, fm.BF16: 2, fm.FP16: 2, fm.FP32: 4, fm.FP8_E4M3: 1, fm.FP8_E5M2: 1}
GUARD = 0xA5


class Region(ct.Structure):
    _fields_ = [("base", ct.c_void_p), ("page_stride", ct.c_uint64), ("row_stride", ct.c_uint64),
                ("page_count", ct.c_uint32), ("rows", ct.c_uint32), ("row_bytes", ct.c_uint32), ("table", ct.c_uint32),
                ("reserved", ct.c_uint32 * 2)]


class Pages(ct.Structure):
    _fields_ = [("regions", ct.POINTER(Region)), ("ids", ct.POINTER(ct.c_uint32)), ("region_count", ct.c_uint32),
                ("id_count", ct.c_uint32)]


class Result(ct.Structure):
    _fields_ = [("bytes", ct.c_uint64), ("status", ct.c_int32), ("chunk_status", ct.c_int32),
                ("failed_pages", ct.c_uint32), ("reserved", ct.c_uint32),
                ("values", ct.c_uint64 * 5)]


class Run(ct.Structure):
    _fields_ = [("size", ct.c_size_t), ("scratch", ct.c_void_p), ("scratch_size", ct.c_size_t),
                ("stream", ct.c_void_p), ("result", ct.POINTER(Result)), ("page_status", ct.POINTER(ct.c_int32)),
                ("page_status_count", ct.c_uint32), ("class_count", ct.c_uint32), ("class_stats", ct.c_void_p),
                ("metadata", ct.c_void_p)]


class ClassStats(ct.Structure):
    _fields_ = [("values", ct.c_uint64), ("escapes", ct.c_uint64)]


class ChunkInfo(ct.Structure):
    _fields_ = [("chunk_bytes", ct.c_uint64), ("metadata_bytes", ct.c_uint64), ("page_count", ct.c_uint32),
                ("page_bytes", ct.c_uint32), ("element", ct.c_int), ("version", ct.c_uint8),
                ("codebook_id", ct.c_uint8 * 16)]


class PageInfo(ct.Structure):
    _fields_ = [("sum", ct.c_uint64), ("page_bytes", ct.c_uint32), ("coded_bytes", ct.c_uint32),
                ("table", ct.c_uint32), ("block_modes", ct.c_uint32)]


class EncodeParams(ct.Structure):
    _fields_ = [("size", ct.c_size_t), ("element", ct.c_int), ("mode", ct.c_int), ("codebook", ct.c_void_p)]


def load(path):
    lib = ct.CDLL(path)
    pointer, pages, run = ct.c_void_p, ct.POINTER(Pages), ct.POINTER(Run)
    for name, result, arguments in (
            ("strait_codec_get", pointer, [ct.c_char_p]),
            ("strait_codebook_create", ct.c_int, [pointer, pointer, ct.c_uint32, ct.POINTER(pointer)]),
            ("strait_codebook_destroy", None, [pointer]),
            ("strait_codebook_id", pointer, [pointer]),
            ("strait_scratch_size", ct.c_size_t, [pointer]),
            ("strait_encode_bound", ct.c_uint64, [pages]),
            ("strait_encode", ct.c_int, [pointer, ct.POINTER(EncodeParams), pointer, ct.c_uint64, pages, run]),
            ("strait_decode", ct.c_int, [pointer, pointer, pages, pointer, pointer, ct.c_uint64, run]),
            ("strait_verify", ct.c_int, [pointer, pointer, pointer, ct.c_uint64, run]),
            ("strait_chunk_info", ct.c_int, [pointer, ct.c_uint64, ct.POINTER(ChunkInfo)]),
            ("strait_chunk_pages", ct.c_int, [pointer, ct.c_uint64, ct.c_uint32, ct.POINTER(PageInfo)])):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


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
        self.array, self.buffers, self.shapes = (Region * len(regions))(), [], []
        for region, (length, table) in zip(self.array, regions):
            rows = int(rng.choice([r for r in (1, 1, 1, 2, 4, 8, 64) if length % (r * step) == 0 or r == 1]))
            row_stride = self.stride(rng, length // rows, step)
            page_stride = self.stride(rng, row_stride * (rows - 1) + length // rows, step)
            skip = step * int(rng.integers(0, 9))
            buffer = aligned(skip + page_stride * page_count + 8)
            region.base, region.page_stride, region.row_stride = buffer.ctypes.data + skip, page_stride, row_stride
            region.page_count, region.rows, region.row_bytes, region.table = page_count, rows, length // rows, table
            self.buffers.append(buffer)
            self.shapes.append((skip, page_stride, row_stride, rows, length // rows))
        ids = None if identity and rng.random() < 0.5 else ct.cast(self.ids, ct.POINTER(ct.c_uint32))
        self.pages = Pages(self.array, ids, len(regions), id_count)
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
        self.stats = (ClassStats * 8)()

    def run(self, result, with_scratch):
        run = Run(ct.sizeof(Run), None, 0, None, ct.pointer(result), ct.cast(self.statuses, ct.POINTER(ct.c_int32)),
                  len(self.statuses))
        if with_scratch:
            run.scratch, run.scratch_size = self.scratch.ctypes.data, len(self.scratch)
        ct.memset(self.stats, 0, ct.sizeof(self.stats))
        run.class_stats, run.class_count = ct.addressof(self.stats), len(self.stats)
        return run

    def encode(self, pool, element, asked, codebook, with_scratch=False):
        """(returned, result, chunk)"""
        capacity = self.lib.strait_encode_bound(pool.pages)
        chunk = aligned(capacity + 64)
        result = Result()
        params = EncodeParams(ct.sizeof(EncodeParams), element, ASKED[asked], codebook)
        returned = self.lib.strait_encode(self.handle, params, chunk.ctypes.data, capacity, pool.pages,
                                          self.run(result, with_scratch))
        expect((chunk[capacity:] == GUARD).all(), "encode wrote beyond its capacity", self.name)
        return returned, result, chunk[:result.bytes].tobytes()

    def decode(self, chunk, codebook, pool, select=None, with_scratch=False):
        """(returned, result, page statuses)"""
        result, source = Result(), self.source(chunk)
        chosen = (ct.c_uint32 * len(select))(*select) if select is not None else None
        returned = self.lib.strait_decode(self.handle, codebook, pool.pages, chosen, source.ctypes.data, len(chunk),
                                          self.run(result, with_scratch))
        return returned, result, self.statuses[:pool.count]

    def verify(self, chunk, codebook, count):
        result, source = Result(), self.source(chunk)
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
