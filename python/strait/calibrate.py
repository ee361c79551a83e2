"""Calibrates a codebook set on many files with many processes:

    torchrun --nproc-per-node 8 -m strait.calibrate FILES... -o SET
    mpirun -n 8 python -m strait.calibrate FILES... -o SET          srun likewise
    python -m strait.calibrate FILES... -o SET                      one process, without torch

FILES are safetensors files, or folders of them. Each is read by one rank, chosen by size so that all have about as much
to do; the counts are then added, so the set is that of `strait calibrate FILES...`, byte for byte, with the bits that
it expects, and the same on every rank, which is checked. Rank 0 writes SET. A rank that fails or dies ends all others,
within ten seconds if it had begun.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strait.codebook import Counts

_DTYPES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}
_SILENCE = 8.0  # seconds after which a rank counts as dead,
_START = 60.0  # unless it has not been heard of at all
_HEADER_MAX = 100 << 20


class Failure(Exception):
    """Told without a traceback."""


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
    """Names, types and bytes of the tensors of that type, or of all that have tables, in a safetensors file. Failure:
    it is none."""
    wanted = {dtype: name for name, dtype in _DTYPES.items() if element in (None, name)}
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
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
                yield name, wanted[tensor["dtype"]], np.frombuffer(mapped[begin:end], np.uint8)
    except (OSError, ValueError, KeyError, TypeError) as failure:
        raise Failure(f"{path}: not a safetensors file: {failure}") from None


def count(files: list[Path], element: str | None) -> Counts:
    counts = Counts(element)
    for path in files:
        for name, dtype, values in tensors_of(path, element):
            counts.add(values, name, element=dtype)
    return counts


# ---- Ranks -----------------------------------------------------------------------------------------------------------

_RANKS = (
    ("RANK", "WORLD_SIZE"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def rank_and_ranks() -> tuple[int, int]:
    for rank, ranks in _RANKS:
        if rank in os.environ and ranks in os.environ:
            return int(os.environ[rank]), int(os.environ[ranks])
    return 0, 1


class Group:
    """The ranks, and a thread that ends this one when another is not heard of."""

    def __init__(self, rank: int, ranks: int):
        import torch.distributed

        dist: Any = torch.distributed
        self._dist, self.rank, self.ranks = dist, rank, ranks
        host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29577"))
        shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        patience = timedelta(minutes=2)
        try:
            store = dist.TCPStore(host, port, ranks, rank == 0 and not shared, patience, wait_for_workers=False)
            mine = dist.TCPStore(host, port, None, False, patience)
        except Exception as failure:
            raise Failure(f"rank {rank} does not reach the others at {host}:{port}: {failure}") from None
        self._store, self._over = store, False
        # Before the group, which waits for its ranks, whether they live or not.
        threading.Thread(target=self._watch, args=(dist.PrefixStore("strait-alive", mine),), daemon=True).start()
        prefixed, day = dist.PrefixStore("strait", store), timedelta(hours=24)
        try:
            dist.init_process_group("gloo", store=prefixed, rank=rank, world_size=ranks, timeout=day)
        except Exception as failure:
            self._die(f"another rank has died: {failure}")  # gloo's threads do not end in order

    def _watch(self, store: Any) -> None:
        begin = time.monotonic() + _START - _SILENCE
        heard = {other: (b"", begin) for other in range(self.ranks) if other != self.rank}
        try:
            store.set(str(self.rank), "0")
            while not self._over:
                store.set(str(self.rank), str(time.time()))
                for other, (before, since) in heard.items():
                    now = store.get(str(other)) if store.check([str(other)]) else b""
                    heard[other] = (now, time.monotonic()) if now != before else (before, since)
                    if now != b"over" and time.monotonic() - heard[other][1] > _SILENCE:
                        self._die(f"rank {other} has died")
                time.sleep(0.5)
            store.set(str(self.rank), "over")
        except Exception as failure:
            if not self._over:
                self._die(f"the other ranks are not reached any more: {failure}")

    def _die(self, why: str) -> None:
        print(f"strait.calibrate: rank {self.rank}: {why}", file=sys.stderr, flush=True)
        os._exit(1)

    def gather(self, mine: Any) -> list[Any]:
        found: list[Any] = [None] * self.ranks
        try:
            self._dist.all_gather_object(found, mine)
        except RuntimeError as failure:
            raise Failure(f"rank {self.rank}: another rank has died: {failure}") from None
        return found

    def end(self) -> None:
        self._over = True
        self._dist.barrier()
        self._dist.destroy_process_group()


def work(options: argparse.Namespace, rank: int, ranks: int) -> str:
    """What rank 0 prints."""
    group = Group(rank, ranks) if ranks > 1 else None
    counts, failed = Counts(options.dtype), ""
    files = files_of(options.files)
    try:
        counts = count(share_of(files, rank, ranks), options.dtype)
    except Failure as failure:
        failed = str(failure)
    parts = group.gather((counts, failed)) if group else [(counts, failed)]
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
    if group and len(set(group.gather(book.id))) != 1:
        raise Failure("ranks made different sets of the same counts")
    if rank == 0:
        temporary = options.output.with_name(f".{options.output.name}.{os.getpid()}")
        book.save(temporary)
        os.replace(temporary, options.output)
    if group:
        group.end()
    return f"{options.output}: {len(book)} tables, {whole.values} values of {len(files)} files, id {book.id.hex()}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m strait.calibrate", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="safetensors files, or folders of them")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the set to write")
    parser.add_argument("--dtype", choices=sorted(_DTYPES), help="tensors that count (default: all of these)")
    rank, ranks = rank_and_ranks()
    try:
        said = work(parser.parse_args(), rank, ranks)
    except (Failure, OSError) as failure:
        print(f"strait.calibrate: {failure}", file=sys.stderr)
        return 1
    if rank == 0:
        print(said)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of other ranks' connections may still wait
