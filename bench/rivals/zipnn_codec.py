#!/usr/bin/env python3
"""The codec beside zipnn, both on one thread: ratio, and GB/s of raw bytes by processor time, medians of turns in which
all take part, one after another, so that what else the machine does falls on all alike.

    PYTHONPATH=python STRAIT_LIBRARY=.../libstrait-codec.so.0 bench/rivals/zipnn_codec.py [MIB [TURNS]]

The values are normally distributed, of deviation 0.02, as weights are: BF16, FP16, FP32, and FP16 and FP32 that had the
type of fewer bits before. Both make new memory for what they encode and decode; `out=` decodes to memory that is there.
Needs zipnn (pip install zipnn==0.5.4), which brings torch.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import strait
from numpy.typing import NDArray
from zipnn import ZipNN

ZIPNN_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def values(mib: int) -> dict[str, tuple[str, NDArray[Any]]]:
    wide = np.random.default_rng(1).standard_normal(mib << 18, np.float32) * np.float32(0.02)
    narrow = (wide.view(np.uint32) >> 16).astype(np.uint16)
    half = wide.astype(np.float16)
    return {
        "BF16": ("bf16", np.concatenate((narrow, narrow[::-1]))),
        "FP16": ("fp16", np.concatenate((half, half[::-1]))),
        "FP16, BF16 before": ("fp16", (np.tile(narrow, 2).astype(np.uint32) << 16).view(np.float32).astype(np.float16)),
        "FP32": ("fp32", wide),
        "FP32, FP16 before": ("fp32", half.astype(np.float32)),
    }


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.process_time()
    result = call()
    return time.process_time() - begin, result


def main() -> None:
    mib, turns = (int(sys.argv[i]) if len(sys.argv) > i else default for i, default in ((1, 64), (2, 11)))
    print(f"strait {strait.__version__} {strait.default_variant()}, {mib} MiB, {turns} turns")
    print(f"{'values':18} {'codec':8} {'ratio':>6} {'encode':>7} {'decode':>7} {'out=':>6} GB/s")
    for name, (element, array) in values(mib).items():
        raw = array.view(np.uint8).tobytes()
        out = np.empty_like(array)
        times: dict[str, list[list[float]]] = {}
        ratios: dict[str, float] = {}
        for _ in range(turns):
            for mode in ("base", "parts"):
                spent, chunk = seconds(lambda: strait.encode(array, element=element, mode=mode))  # noqa: B023
                decoding, back = seconds(lambda: strait.decode(chunk))  # noqa: B023
                into, _none = seconds(lambda: strait.decode(chunk, None, out))  # noqa: B023
                assert back.tobytes() == out.tobytes() == raw
                del back
                times.setdefault(mode, []).append([spent, decoding, into])
                ratios[mode] = len(raw) / len(chunk)
            packer = ZipNN(input_format="byte", bytearray_dtype=ZIPNN_TYPES[element], threads=1)
            copy = bytearray(raw)  # zipnn writes to what it is given
            spent, packed = seconds(lambda: packer.compress(copy))  # noqa: B023
            decoding, back = seconds(lambda: packer.decompress(packed))  # noqa: B023
            assert bytes(back) == raw
            del back
            times.setdefault("zipnn", []).append([spent, decoding, float("nan")])
            ratios["zipnn"] = len(raw) / len(packed)
        for codec, rows in times.items():
            speeds = [len(raw) / 1e9 / statistics.median(column) for column in zip(*rows)]
            print(f"{name:18} {codec:8} {ratios[codec]:6.3f} " + " ".join(f"{speed:7.2f}" for speed in speeds))


if __name__ == "__main__":
    main()
