#!/usr/bin/env python3
"""LMCache's second tiers in one run: Strait's FileAdapter beside LMCache's own files, raw and by its fp8 serde.

    lmcache_l2.py CALIBRATION EVALUATION [--objects N] [--repeats N] [--folder DIR] [--json]

The two files are safetensors of KV caches, BF16, with tensors "layers.N.k" and "layers.N.v" of shape [tokens, ...]: the
codebook is made of the first, objects of 256 tokens of the second. Each tier stores and loads all objects in each turn,
in alternating order; printed are medians of the times, the bytes in the folder, and the objects that came back the same.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import strait
import torch
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, ObjectKey, PrefetchTaskSpec
from lmcache.v1.distributed.config import EvictionConfig, L1ManagerConfig, L1MemoryManagerConfig, StorageManagerConfig
from lmcache.v1.distributed.l2_adapters.config import L2AdaptersConfig, SerdeConfig
from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import FSL2AdapterConfig
from lmcache.v1.distributed.l2_adapters.plugin_l2_adapter import PluginL2AdapterConfig
from lmcache.v1.distributed.storage_manager import StorageManager

TOKENS = 256
RANK = ObjectKey.ComputeKVRank(1, 0, 1, 0)


def read(path: Path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    found = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__" and entry["dtype"] == "BF16":
            begin, end = (8 + size + at for at in entry["data_offsets"])
            found[name] = np.frombuffer(data[begin:end], np.uint16).reshape(entry["shape"])
    return found


def objects_of(path: Path, count: int) -> np.ndarray:
    """[objects, 2, layers, tokens, values of a token]; tokens are repeated where there are too few."""
    tensors = read(path)
    layers = sorted({int(found[1]) for name in tensors if (found := re.fullmatch(r"layers\.(\d+)\.[kv]", name))})
    whole = np.stack(
        [
            np.stack(
                [tensors[f"layers.{n}.{role}"].reshape(-1, *tensors[f"layers.{n}.{role}"].shape[-2:]) for n in layers]
            )
            for role in "kv"
        ]
    )
    tokens = whole.reshape(2, len(layers), -1, whole.shape[-1] * whole.shape[-2])
    wanted = count * TOKENS
    tokens = np.tile(tokens, (1, 1, -(-wanted // tokens.shape[2]), 1))[:, :, :wanted]
    return np.ascontiguousarray(tokens.reshape(2, len(layers), count, TOKENS, -1).transpose(2, 0, 1, 3, 4))


class Tier:
    def __init__(self, name: str, config, folder: Path, objects: np.ndarray):
        self.name, self.folder, self.objects = name, folder, objects
        self.layout = MemoryLayoutDesc(shapes=[torch.Size(objects.shape[1:])], dtypes=[torch.bfloat16])
        memory = L1MemoryManagerConfig(
            size_in_bytes=4 * objects.nbytes + (64 << 20), use_lazy=False, shm_name=f"bench-{os.getpid()}-{folder.name}"
        )
        self.manager = StorageManager(
            StorageManagerConfig(
                l1_manager_config=L1ManagerConfig(memory_config=memory),
                eviction_config=EvictionConfig(eviction_policy="LRU"),
                l2_adapter_config=L2AdaptersConfig(adapters=[config]),
            )
        )
        self.stores, self.loads, self.same, self.turn = [], [], [], 0

    def files(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_file() and not path.name.startswith(".")]

    def run(self) -> None:
        self.turn += 1
        keys = [ObjectKey(f"{self.turn}-{i}".encode(), "m", RANK) for i in range(len(self.objects))]
        shutil.rmtree(self.folder / "x", ignore_errors=True)
        for path in self.files():
            path.unlink()
        for values, obj in zip(self.objects, self.manager.reserve_write(keys, self.layout).values(), strict=True):
            np.frombuffer(obj.byte_array, np.uint8)[:] = values.reshape(-1).view(np.uint8)
        began = time.perf_counter()
        self.manager.finish_write(keys)
        while len([path for path in self.files() if path.suffix != ".tmp"]) < len(keys):
            time.sleep(0.0005)
        self.stores.append(time.perf_counter() - began)
        time.sleep(0.1)
        self.manager.clear(force=True)
        began = time.perf_counter()
        handle = self.manager.submit_prefetch_task(PrefetchTaskSpec([GroupedObjectKeys(keys, 0, self.layout)]))
        self.manager.wait_prefetch_status(handle, 60)
        hits = self.manager.query_prefetch_status(handle).l2_hit_count
        self.loads.append(time.perf_counter() - began)
        same = 0
        if hits:
            with self.manager.read_prefetched_results(keys[:hits]) as found:
                for obj, values in zip(found or [], self.objects):
                    same += bool((np.frombuffer(obj.byte_array, np.uint16) == values.reshape(-1)).all())
            self.manager.finish_read_prefetched(keys[:hits])
        self.same.append(same)
        self.manager.clear(force=True)

    def row(self) -> dict:
        return {
            "tier": self.name,
            "bytes": self.objects.nbytes,
            "stored": sum(path.stat().st_size for path in self.files()),
            "store_ms": statistics.median(self.stores) * 1e3,
            "load_ms": statistics.median(self.loads) * 1e3,
            "same": min(self.same),
            "objects": len(self.objects),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calibration", type=Path)
    parser.add_argument("evaluation", type=Path)
    parser.add_argument("--objects", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--folder", type=Path, help="where the tiers' folders are made (a temporary one)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    objects = objects_of(arguments.evaluation, arguments.objects)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as top:
        folders = {name: Path(top) / name for name in ("strait", "fs", "fp8")}
        for folder in folders.values():
            folder.mkdir()
        codebook = Path(top) / "codebook"
        strait.calibrate(
            {"kv": np.concatenate([each.reshape(-1) for each in read(arguments.calibration).values()])}
        ).save(codebook)
        ours = PluginL2AdapterConfig.from_dict(
            {
                "module_path": "strait.lmcache",
                "class_name": "FileAdapter",
                "adapter_params": {"folder": str(folders["strait"]), "codebook": str(codebook)},
            }
        )
        raw, fp8 = (FSL2AdapterConfig.from_dict({"base_path": str(folders[name])}) for name in ("fs", "fp8"))
        fp8.serde_config = SerdeConfig("fp8")
        tiers = [
            Tier("strait", ours, folders["strait"], objects),
            Tier("fs", raw, folders["fs"], objects),
            Tier("fs, fp8", fp8, folders["fp8"], objects),
        ]
        for turn in range(arguments.repeats + 1):
            for tier in tiers if turn % 2 else reversed(tiers):
                tier.run()
            if turn == 0:  # warm
                for tier in tiers:
                    tier.stores, tier.loads = [], []
        rows = [tier.row() for tier in tiers]
        for tier in tiers:
            tier.manager.close()
    if arguments.json:
        print(json.dumps({"schema": 1, "rows": rows}))
        return 0
    print(f"{'tier':10}{'MB':>8}{'stored MB':>11}{'ratio':>7}{'store ms':>10}{'load ms':>9}{'same':>8}")
    for row in rows:
        print(
            f"{row['tier']:10}{row['bytes'] / 1e6:>8.1f}{row['stored'] / 1e6:>11.2f}{row['bytes'] / row['stored']:>7.3f}"
            f"{row['store_ms']:>10.1f}{row['load_ms']:>9.1f}{row['same']:>5}/{row['objects']}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
