#!/usr/bin/env python3
"""Other codecs on a GPU beside ours, on the same bytes in one run: the released SplitZip codec, from a checkout of its
repository (--splitzip), and nvCOMP's ANS (--nvcomp, or the package nvidia-libnvcomp-cu13). Needs torch, and triton for
SplitZip; what is missing is left out, with the reason. One difference after decoding and the exit status is 1.

  rivals_gpu.py --input eval.safetensors --calib calib.safetensors --splitzip DIR [--nvcomp WHEEL] [--strait PROGRAM]

bench/README.md tells what is measured.
"""

import argparse
import ctypes
import glob
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import zipfile

REGIONS_MAX = 64
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Failure(Exception):
    """Told to stderr without a traceback."""


def size_of(text):
    unit = UNITS.get(text[-1:].upper())
    number = text[:-1] if unit else text
    if not number.isdecimal() or int(number) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is no size, such as 32M")
    return int(number) * (unit or 1)


# ---- Values ---------------------------------------------------------------------------------------------------------


def read_tensors(path):
    """The bytes of the BF16 tensors of a safetensors file, in the order in which they lie there."""
    try:
        with open(path, "rb") as file:
            content = file.read()
        (length,) = struct.unpack_from("<Q", content)
        header = json.loads(content[8:8 + length])
    except (OSError, ValueError, struct.error) as error:
        raise Failure(f"{path}: {error}") from error
    header.pop("__metadata__", None)
    places = sorted(entry["data_offsets"] for entry in header.values() if entry["dtype"] == "BF16")
    if not places:
        raise Failure(f"{path}: no BF16 values")
    return [content[8 + length + begin:8 + length + end] for begin, end in places]


def count_regions(tensors):
    """The largest power of two that there are tensors for, as in `strait bench codec --device`."""
    count = 1
    while 2 * count <= min(len(tensors), REGIONS_MAX):
        count *= 2
    return count


def tile(torch, tensors, size, page):
    """What that bench codes: regions, each of which repeats one tensor."""
    regions = count_regions(tensors)
    region = size // (regions * page) * page
    values = torch.empty(regions * region, dtype=torch.uint8, device="cuda")
    for r in range(regions):
        tensor = torch.frombuffer(bytearray(tensors[r]), dtype=torch.uint8).cuda()
        copies = -(-region // tensor.numel())
        values[r * region:(r + 1) * region] = tensor.repeat(copies)[:region]
    return values


def sum_of(torch, values):
    """device_sum of bench/device.h, in hexadecimal."""
    words = values.view(torch.int64)
    numbers = torch.arange(1, words.numel() + 1, dtype=torch.int64, device=words.device)
    return f"{(words * numbers).sum().item() % (1 << 64):016x}"


# ---- Time -----------------------------------------------------------------------------------------------------------


def rate_of(torch, call, size, repeats):
    """GB/s of raw bytes: the median over groups of calls, one after another between two events."""
    calls = max(3, (256 << 20) // size)
    times = []
    for _ in range(3):
        call()
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / calls)
    return size / statistics.median(times) / 1e6


# ---- nvCOMP's ANS codec: the batched C interface of libnvcomp 6, all memory taken beforehand -----------------------

UCHAR, FLOAT16 = 1, 10  # nvcompType_t; the latter is "applicable to all half-precision data formats"
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
            # Once: the library of the size before may still be mapped.
            wheel.extractall(scratch, [name for name in names if not os.path.exists(os.path.join(scratch, name))])
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

    def __init__(self, torch, library, values, chunk, histogram_reduction=0, data_type=FLOAT16):
        self.torch, self.library, self.values, self.chunk = torch, library, values, chunk
        self.compress = CompressOpts(RANS, data_type, 0, 0, histogram_reduction)
        self.decompress = DecompressOpts(BACKEND_CUDA, data_type, 0, STATES, 0)
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


# ---- Codecs ---------------------------------------------------------------------------------------------------------


class Strait:
    """`strait bench codec --device`, a process of its own for each round. Gives several rows."""

    def __init__(self, arguments, size, values_sum):
        self.arguments, self.size, self.values_sum = arguments, size, values_sum

    def measure(self):
        arguments = self.arguments
        command = [arguments.strait, "bench", "codec", "--device", "--cases", "codec", "--json",
                   "--size", str(self.size), "--page", str(arguments.page), "--repeats", str(arguments.repeats),
                   "--input", arguments.input, "--calib", arguments.calib]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failure(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()}")
        for row in json.loads(done.stdout)["rows"]:
            if row["case"] == "codec" and row["bytes"] == self.size:
                yield self.row(row)
            elif row["case"].startswith("copy"):
                yield {"codec": row["case"], "detail": "", "ratio": None, "encode": row["encode_GBps"], "decode": None,
                       "verified": row["check"]}

    def row(self, row):
        if row["values"] != self.values_sum:
            raise Failure(f"strait coded other bytes than the rivals: {row['values']}, not {self.values_sum}")
        return {"codec": f"strait {row['mode']}", "detail": f"pages {row['order']}", "ratio": row["ratio"],
                "encode": row["encode_GBps"], "decode": row["decode_GBps"], "verified": row["check"]}


class SplitZip:
    """As its own bench calls it: a tensor of its own for every result."""

    def __init__(self, torch, arguments, values, calibration):
        sys.path.insert(0, arguments.splitzip)
        try:
            from codec_gpu import ChunkLocalSplitZipGPU
        except ImportError as error:
            raise Missing(f"SplitZip: {error}") from error
        self.torch, self.arguments = torch, arguments
        self.values = values.view(torch.bfloat16)
        self.codec = ChunkLocalSplitZipGPU(device="cuda", chunk_size=1024)
        self.codec.calibrate(calibration.view(torch.bfloat16))

    def measure(self):
        torch, size = self.torch, self.values.numel() * 2
        coded = self.codec.encode(self.values)
        encode = rate_of(torch, lambda: self.codec.encode(self.values), size, self.arguments.repeats)
        decode = rate_of(torch, lambda: self.codec.decode(coded), size, self.arguments.repeats)
        same = torch.equal(self.codec.decode(coded).view(torch.int16), self.values.view(torch.int16))
        yield {"codec": "SplitZip", "detail": "one piece", "ratio": size / coded.compressed_bytes, "encode": encode,
               "decode": decode, "verified": same}


class NvComp:
    """The ANS codec for half-precision values; reduction: histograms of 1/2^N of the values."""

    def __init__(self, torch, arguments, library, values, chunk, reduction):
        self.torch, self.arguments, self.chunk, self.reduction = torch, arguments, chunk, reduction
        self.ans = Ans(torch, library, values, chunk, reduction)

    def measure(self):
        torch, ans, size = self.torch, self.ans, self.ans.values.numel()
        encode = rate_of(torch, ans.encode, size, self.arguments.repeats)
        good = ans.succeeded()
        ans.back.fill_(0xFF)
        decode = rate_of(torch, ans.decode, size, self.arguments.repeats)
        good = good and ans.succeeded() and torch.equal(ans.back.view(torch.int64), ans.values.view(torch.int64))
        detail = f"chunks {self.chunk >> 10}K" + (f", histogram 1/{1 << self.reduction}" if self.reduction else "")
        yield {"codec": "nvCOMP ANS", "detail": detail, "ratio": size / ans.coded_bytes(), "encode": encode,
               "decode": decode, "verified": good}


# ---- The run --------------------------------------------------------------------------------------------------------


def make_nvcomp(torch, arguments, values, scratch):
    library = Library(find_library(arguments.nvcomp, scratch))
    wanted = [(chunk, 0) for chunk in arguments.nvcomp_chunks] + [(arguments.nvcomp_chunks[0], 4)]
    return [NvComp(torch, arguments, library, values, chunk, reduction) for chunk, reduction in wanted]


def make_codecs(torch, arguments, size, scratch, notes):
    tensors = read_tensors(arguments.input)
    values = tile(torch, tensors, size, arguments.page)
    calibration = torch.frombuffer(bytearray(b"".join(read_tensors(arguments.calib))), dtype=torch.uint8).cuda()
    codecs = [Strait(arguments, values.numel(), sum_of(torch, values))]
    for make in ([lambda: [SplitZip(torch, arguments, values, calibration)]] if arguments.splitzip else []) + \
            [lambda: make_nvcomp(torch, arguments, values, scratch)]:
        try:
            codecs += make()
        except Missing as why:
            notes.add(f"skipped: {why}")
    return codecs


def measure_codec(codec, rows, notes):
    """A rival that fails does not take the others along. False: it did."""
    try:
        for row in codec.measure():
            rows.setdefault((row["codec"], row["detail"]), []).append(row)
    except Failure:
        raise
    except Exception as error:  # whatever its authors raise
        notes.add(f"FAILED: {type(codec).__name__}: {type(error).__name__}: {error}")
        return False
    return True


def measure_size(torch, arguments, size, scratch, notes):
    """Rounds of all codecs in turn; of each row the medians over them."""
    codecs, rows = make_codecs(torch, arguments, size, scratch, notes), {}
    bytes_coded = codecs[0].size
    for _ in range(arguments.rounds):
        codecs = [codec for codec in codecs if measure_codec(codec, rows, notes)]
        torch.cuda.empty_cache()
    for rounds in rows.values():
        row = dict(rounds[0], bytes=bytes_coded, verified=all(row["verified"] for row in rounds))
        for figure in "encode", "decode":
            if row[figure] is not None:
                row[figure] = statistics.median(one[figure] for one in rounds)
        yield row


def print_table(rows, notes, head):
    print(head)
    print(f"\n{'size':>6} {'codec':<14} {'detail':<30} {'ratio':>7} {'enc GB/s':>9} {'dec GB/s':>9}  verified")
    for row in rows:
        figures = [f"{row[name]:{width}.{digits}f}" if row[name] is not None else "-".rjust(width)
                   for name, width, digits in (("ratio", 7, 4), ("encode", 9, 1), ("decode", 9, 1))]
        print(f"{row['bytes'] >> 20:>5}M {row['codec']:<14} {row['detail']:<30} {' '.join(figures)}  "
              f"{'yes' if row['verified'] else 'NO'}")
    for note in sorted(notes):
        print(note)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--input", required=True, metavar="FILE", help="safetensors file to measure on")
    parser.add_argument("--calib", required=True, metavar="FILE", help="to make codebooks of: other values")
    parser.add_argument("--splitzip", metavar="DIR", help="a checkout of SplitZip")
    parser.add_argument("--nvcomp", metavar="PATH", help="libnvcomp.so, a folder or a wheel with it; the one installed")
    parser.add_argument("--nvcomp-chunks", type=size_of, nargs="+", default=[64 << 10, 256 << 10], metavar="SIZE")
    parser.add_argument("--strait", default=shutil.which("strait") or "strait", metavar="PROGRAM")
    parser.add_argument("--size", type=size_of, nargs="+", default=[1 << 30, 32 << 20], metavar="SIZE")
    parser.add_argument("--page", type=size_of, default=32 << 10, metavar="SIZE", help="of our pages; 32K")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of all codecs in turn; 3")
    parser.add_argument("--repeats", type=int, default=9, metavar="N", help="in each of them; 9")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.rounds < 1 or arguments.repeats < 1:
        parser.error("--rounds and --repeats take a number from 1")
    return arguments


def describe(torch, arguments):
    done = subprocess.run([arguments.strait, "--version"], capture_output=True, text=True, check=False)
    return (f"{done.stdout.strip() or 'strait'}; {torch.cuda.get_device_name()}; torch {torch.__version__}; medians of "
            f"{arguments.rounds} rounds of {arguments.repeats}; codebooks calibrated on {arguments.calib}")


def run(arguments):
    try:
        import torch
    except ImportError as error:
        print(f"skipped: {error}")
        return 77
    if not torch.cuda.is_available():
        print("skipped: no GPU here")
        return 77
    rows, notes = [], set()
    with tempfile.TemporaryDirectory() as scratch:
        for size in arguments.size:
            rows += measure_size(torch, arguments, size, scratch, notes)
    if arguments.json:
        print(json.dumps({"head": describe(torch, arguments), "rows": rows, "notes": sorted(notes)}, indent=1))
    else:
        print_table(rows, notes, describe(torch, arguments))
    failed = any(note.startswith("FAILED") for note in notes) or not all(row["verified"] for row in rows)
    return 1 if failed else 0


def main():
    try:
        return run(parse_arguments())
    except (Failure, OSError) as failure:
        print(f"rivals_gpu.py: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
