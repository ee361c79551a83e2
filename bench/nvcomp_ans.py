"""nvCOMP's ANS codec through the batched C interface of libnvcomp 6, by ctypes: all memory is taken beforehand, nothing
waits, as a user who wants speed calls it. Used by rivals_gpu.py."""

import ctypes
import glob
import os
import zipfile

FLOAT16 = 10  # nvcompType_t, "applicable to all half-precision data formats"
RANS = 0
BACKEND_CUDA = 2
STATES = 2  # per lane: what the compressor takes by default


class CompressOpts(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("data_type", ctypes.c_int), ("max_sub_chunk_count", ctypes.c_uint8),
                ("states_per_lane", ctypes.c_uint8), ("histogram_reduction_log2", ctypes.c_uint8),
                ("reserved", ctypes.c_char * 53)]


class DecompressOpts(ctypes.Structure):
    _fields_ = [("backend", ctypes.c_int), ("data_type", ctypes.c_int), ("max_sub_chunk_count", ctypes.c_uint8),
                ("states_per_lane", ctypes.c_uint8), ("skip_validate", ctypes.c_uint8),
                ("reserved", ctypes.c_char * 53)]


class Properties(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("cudart_version", ctypes.c_uint32)]


ANSWER = object()  # where a function writes the size that it is asked for
NO_STREAM = None


class Missing(Exception):
    """There is no nvCOMP to compare with, or not the one that this file was written for."""


def find_library(path, scratch):
    """The library in a wheel, in a folder, or in the installed package nvidia-libnvcomp-cu13 (or -cu12)."""
    if path is None:
        try:
            import nvidia.libnvcomp as package
        except ImportError as error:
            raise Missing(f"nvidia-libnvcomp-cu13 is not installed ({error})") from error
        path = list(package.__path__)[0]
    if path.endswith(".whl"):
        with zipfile.ZipFile(path) as wheel:
            names = [name for name in wheel.namelist() if "/libnvcomp.so" in name]
            wheel.extractall(scratch, names)
        path = scratch
    if os.path.isdir(path):
        found = glob.glob(os.path.join(path, "**", "libnvcomp.so.*"), recursive=True)
        if not found:
            raise Missing(f"no libnvcomp.so in {path}")
        path = found[0]
    return path


class Library:
    """The functions that are used, with the types that ans.h gives them."""

    def __init__(self, path):
        try:
            self.so = ctypes.CDLL(path)
        except OSError as error:
            raise Missing(str(error)) from error
        properties = Properties()
        self.check(self.so.nvcompGetProperties(ctypes.byref(properties)), "nvcompGetProperties")
        self.version = properties.version
        if self.version // 1000 != 6:
            raise Missing(f"nvCOMP {self.version // 1000}: only the interface of version 6 is known here")
        size, pointer, out = ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)
        self.so.nvcompBatchedANSCompressGetMaxOutputChunkSize.argtypes = [size, CompressOpts, out]
        self.so.nvcompBatchedANSCompressGetTempSize.argtypes = [size, size, CompressOpts, out, size, pointer]
        self.so.nvcompBatchedANSDecompressGetTempSize.argtypes = [size, size, DecompressOpts, out, size, pointer]
        self.so.nvcompBatchedANSCompressAsync.argtypes = [pointer, pointer, size, size, pointer, size, pointer, pointer,
                                                          CompressOpts, pointer, pointer]
        self.so.nvcompBatchedANSDecompressAsync.argtypes = [pointer, pointer, pointer, pointer, size, pointer, size,
                                                            pointer, DecompressOpts, pointer, pointer]

    @staticmethod
    def check(status, what):
        if status != 0:
            raise RuntimeError(f"{what}: nvCOMP status {status}")

    def ask(self, function, *arguments):
        answer = ctypes.c_size_t()
        where = [ctypes.byref(answer) if argument is ANSWER else argument for argument in arguments]
        self.check(getattr(self.so, function)(*where), function)
        return answer.value


class Ans:
    """Compresses one tensor of bytes on the GPU, in chunks, and back."""

    def __init__(self, torch, library, values, chunk, histogram_reduction=0):
        self.torch, self.library, self.values, self.chunk = torch, library, values, chunk
        self.compress = CompressOpts(RANS, FLOAT16, 0, 0, histogram_reduction)
        self.decompress = DecompressOpts(BACKEND_CUDA, FLOAT16, 0, STATES, 0)
        total, device = values.numel(), values.device
        if total % chunk != 0:
            raise ValueError(f"{total} bytes are no whole number of chunks of {chunk}")
        self.count = total // chunk
        bound = library.ask("nvcompBatchedANSCompressGetMaxOutputChunkSize", chunk, self.compress, ANSWER)
        self.room = (bound + 255) // 256 * 256
        self.coded = torch.empty(self.count * self.room, dtype=torch.uint8, device=device)
        self.back = torch.empty_like(values)
        self.raw_pointers = self.pointers(values, chunk)
        self.coded_pointers = self.pointers(self.coded, self.room)
        self.back_pointers = self.pointers(self.back, chunk)
        self.raw_sizes = torch.full((self.count,), chunk, dtype=torch.int64, device=device)
        self.coded_sizes = torch.zeros_like(self.raw_sizes)
        self.back_sizes = torch.zeros_like(self.raw_sizes)
        self.statuses = torch.full((self.count,), -1, dtype=torch.int32, device=device)
        self.compress_temp = self.temp("nvcompBatchedANSCompressGetTempSize", self.compress)
        self.decompress_temp = self.temp("nvcompBatchedANSDecompressGetTempSize", self.decompress)

    def pointers(self, tensor, step):
        return tensor.data_ptr() + step * self.torch.arange(self.count, dtype=self.torch.int64, device=tensor.device)

    def temp(self, function, opts):
        size = self.library.ask(function, self.count, self.chunk, opts, ANSWER, self.values.numel(), NO_STREAM)
        return self.torch.empty(max(size, 1), dtype=self.torch.uint8, device=self.values.device)

    def stream(self):
        return self.torch.cuda.current_stream().cuda_stream

    def encode(self):
        status = self.library.so.nvcompBatchedANSCompressAsync(
            self.raw_pointers.data_ptr(), self.raw_sizes.data_ptr(), self.chunk, self.count,
            self.compress_temp.data_ptr(), self.compress_temp.numel(), self.coded_pointers.data_ptr(),
            self.coded_sizes.data_ptr(), self.compress, self.statuses.data_ptr(), self.stream())
        self.library.check(status, "compressing")

    def decode(self):
        status = self.library.so.nvcompBatchedANSDecompressAsync(
            self.coded_pointers.data_ptr(), self.coded_sizes.data_ptr(), self.raw_sizes.data_ptr(),
            self.back_sizes.data_ptr(), self.count, self.decompress_temp.data_ptr(), self.decompress_temp.numel(),
            self.back_pointers.data_ptr(), self.decompress, self.statuses.data_ptr(), self.stream())
        self.library.check(status, "decompressing")

    def coded_bytes(self):
        """Without the table of sizes that a container would need."""
        return int(self.coded_sizes.sum().item())

    def succeeded(self):
        return bool((self.statuses == 0).all().item())
