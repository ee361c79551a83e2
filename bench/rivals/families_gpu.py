#!/usr/bin/env python3
"""nvCOMP's ANS beside ours on the caches that bench/families.py --keep has stored, in every type of values.

  families_gpu.py --keep DIR [--nvcomp PATH] [--only NAME,...]

Each cell is the ratio of ours, as families.py measures it, and in brackets the order-0 limit, that of zstd -3 and the
better one of nvCOMP's ANS with chunks of 64 and 256 KiB: for BF16 and FP16 by its type for half-precision values, for
FP32 and FP8, of which it knows nothing, by bytes. Its sizes are without what a container would need. Everything is
decoded and compared. Needs a GPU, torch, and what families.py needs.
"""

import argparse
import ctypes
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import families  # noqa: E402
import rivals_gpu  # noqa: E402

CHUNKS = (64 << 10, 256 << 10)


class Failure(Exception):
    """Told to stderr without a traceback."""


def ratio_of(torch, library, cache, element):
    """Of all tensors of a cache, one behind the other, cut into whole chunks; the better of the two chunk sizes."""
    everything = np.concatenate([np.ascontiguousarray(tensor).view(np.uint8).reshape(-1) for tensor in cache.values()])
    data_type = rivals_gpu.FLOAT16 if element in ("bf16", "fp16") else rivals_gpu.UCHAR
    best = 0.0
    for chunk in CHUNKS:
        values = everything[: everything.size // chunk * chunk]
        values = torch.frombuffer(bytearray(values), dtype=torch.uint8).cuda()
        ans = rivals_gpu.Ans(torch, library, values, chunk, data_type=data_type)
        ans.encode()
        ans.back.fill_(0xFF)
        good = ans.succeeded()
        ans.decode()
        if not good or not ans.succeeded() or not torch.equal(ans.back, values):
            raise Failure(f"nvCOMP, {element}, chunks of {chunk}: other bytes come back")
        best = max(best, values.numel() / ans.coded_bytes())
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--keep", type=Path, required=True, metavar="DIR", help="caches that families.py has stored")
    parser.add_argument("--nvcomp", metavar="PATH", help="libnvcomp.so, a folder or a wheel with it; the one installed")
    parser.add_argument("--only", default="llama,gpt2,qwen3,deepseek")
    arguments = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("skipped: no GPU")
        return 77
    columns = {}
    with tempfile.TemporaryDirectory() as scratch:
        library = rivals_gpu.Library(rivals_gpu.find_library(arguments.nvcomp, scratch))
        for family in arguments.only.split(","):
            _, (calib, held) = families.load(arguments.keep / f"{family}.npz")
            columns[family] = {}
            for name, kind in families.KINDS.items():
                figures = families.measure(kind, calib, held)
                columns[family][name] = figures, ratio_of(torch, library, kind.make(held), kind.element)
    print(f"nvCOMP {library.version}, {torch.cuda.get_device_name()}")
    print("\n| values | aim |", " | ".join(columns), "|\n|---|---|" + "---|" * len(columns))
    for name, kind in families.KINDS.items():
        cells = [
            f"{ours.ratio:.3f} ({ours.limit:.3f}, {ours.zstd:.3f}, {theirs:.3f})"
            for ours, theirs in (columns[family][name] for family in columns)
        ]
        print(f"| {name} | {kind.bar:.2f} |", " | ".join(cells), "|")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failure, rivals_gpu.Failure, rivals_gpu.Missing, OSError, ctypes.ArgumentError) as failure:
        print(f"families_gpu.py: {failure}", file=sys.stderr)
        sys.exit(1)
