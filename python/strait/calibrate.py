"""Calibrates a codebook set on many files with many processes:

    torchrun --nproc-per-node 8 -m strait.calibrate FILES... -o SET
    mpirun -n 8 python -m strait.calibrate FILES... -o SET          srun likewise
    python -m strait.calibrate FILES... -o SET                      one process

FILES are safetensors files, or folders of them. Each is read by one rank, chosen by size so that all have about as much
to do; the counts are then added, so the set is that of `strait calibrate FILES...`, byte for byte, with the bits that
it expects, and the same on every rank, which is checked. Rank 0 writes SET. A rank that fails or dies ends all others,
within ten seconds if it had begun. Ranks of several hosts need torch, and MASTER_ADDR, which torchrun sets.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strait import _ranks
from strait._ranks import Failure
from strait.codebook import Counts

_DTYPES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}
_HEADER_MAX = 100 << 20


# ---- Files -----------------------------------------------------------------------------------------------------------


def files_of(paths: list[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        if not inside:
            raise Failure(f"{path}: no safetensors files in this folder")
        found += inside
    return list(dict.fromkeys(found))  # a file that is named twice counts once


def share_of(files: list[Path], rank: int, ranks: int) -> list[Path]:
    """The files of a rank: the largest first, each to whom has least."""
    try:
        sizes = {file: file.stat().st_size for file in files}
    except OSError as failure:
        raise Failure(str(failure)) from None
    shares: list[list[Path]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for file in sorted(sizes, key=lambda file: (-sizes[file], str(file))):
        least = loads.index(min(loads))
        shares[least].append(file)
        loads[least] += sizes[file]
    return shares[rank]


def tensors_of(path: Path, element: str | None) -> Iterator[tuple[str, str, NDArray[Any]]]:
    """Names, types and bytes, in the page cache, of the tensors of that type, or of all that have tables, in a
    safetensors file. Failure: it is none."""
    wanted = {dtype: name for name, dtype in _DTYPES.items() if element in (None, name)}
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # until no array is left
            mapped.madvise(mmap.MADV_SEQUENTIAL)
            size = int.from_bytes(mapped[:8], "little")
            if not 2 <= size <= min(_HEADER_MAX, len(mapped) - 8):
                raise ValueError("its header's size makes no sense")
            header = json.loads(mapped[8 : 8 + size])
            if not isinstance(header, dict):
                raise ValueError("its header is no object")
            for name, tensor in header.items():
                if name == "__metadata__" or tensor["dtype"] not in wanted:
                    continue
                begin, end = (8 + size + int(at) for at in tensor["data_offsets"])
                if not 8 + size <= begin <= end <= len(mapped):
                    raise ValueError(f"tensor {name!r} lies outside of the file")
                yield name, wanted[tensor["dtype"]], np.frombuffer(mapped, np.uint8, end - begin, begin)
    except (OSError, ValueError, KeyError, TypeError) as failure:
        raise Failure(f"{path}: not a safetensors file: {failure}") from None


def count(files: list[Path], element: str | None) -> Counts:
    counts = Counts(element)
    for path in files:
        for name, dtype, values in tensors_of(path, element):
            counts.add(values, name, element=dtype)
    return counts


# ---- Ranks -----------------------------------------------------------------------------------------------------------


def work(options: argparse.Namespace) -> str:
    """What rank 0 prints; empty at the others."""
    with _ranks.join() as group:
        rank, ranks, _ = _ranks.place()
        counts, failed = Counts(options.dtype), ""
        files = files_of(options.files)
        try:
            counts = count(share_of(files, rank, ranks), options.dtype)
        except Failure as failure:
            failed = str(failure)
        parts = group.gather((counts, failed))
        failures = [text for _, text in parts if text]
        if failures:
            raise Failure("; ".join(failures))
        whole = Counts(options.dtype)
        for part, _ in parts:
            whole += part
        try:
            book = whole.codebook()
        except ValueError:
            wanted = options.dtype or "bf16, fp16 or fp32"
            raise Failure(f"no tensor of {wanted} in {len(files)} files") from None
        if len(set(group.gather(book.id))) != 1:
            raise Failure("ranks made different sets of the same counts")
        if rank == 0:
            temporary = options.output.with_name(f".{options.output.name}.{os.getpid()}")
            book.save(temporary)
            os.replace(temporary, options.output)
        group.gather(None)  # no rank ends in order before the set is there
    if rank != 0:
        return ""
    return f"{options.output}: {len(book)} tables, {whole.values} values of {len(files)} files, id {book.id.hex()}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m strait.calibrate", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="safetensors files, or folders of them")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the set to write")
    parser.add_argument("--dtype", choices=sorted(_DTYPES), help="tensors that count (default: all of these)")
    try:
        said = work(parser.parse_args())
    except (Failure, OSError) as failure:
        print(f"strait.calibrate: {failure}", file=sys.stderr)
        return 1
    if said:
        print(said)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of other ranks' connections may still wait
