#!/usr/bin/env python3
"""Ratios on KV caches of several families of models, in every type of values.

    families.py [--corpus DIR] [--keep DIR] [--steps N] [--threads N] [--only NAME,...]

Trains a small model of each family for some hundred steps, on the tree's documents and on Python's own sources, in a
vocabulary of 4096 parts of words, runs it over texts that it has not seen, and takes the cache: K and V of each layer,
or MLA's latents of 512 + 64 values. Half of the texts calibrate the tables, the other half is measured. The models run
in BF16, in FP16 and in FP32, so that values of each type are computed in it; FP8 is cast from FP32. --corpus:
safetensors *-kv-calib and *-kv-eval of larger models, in BF16 ("layers.N.k"); what FP32 and FP16 have beyond is random.
--keep: caches are stored there, and are not made again where they are there.

Needs torch and transformers (on CPUs), numpy and zstandard; the libraries are those of STRAIT_LIBRARY, the binding
that of PYTHONPATH. Prints a table of Markdown: the ratio, and in brackets the order-0 limit (of exponents; for FP8 of
whole bytes) and that of zstd -3.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zstandard

import strait

Array = np.ndarray[Any, Any]
Cache = dict[tuple[str, int], Array]  # [token, head, value] by role and layer

CONTEXT, BATCH, WINDOWS = 512, 2, 8  # tokens of a text, texts of a step, texts that are run: half of them for tables
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD = 256, 4, 4, 2, 64
VOCABULARY = 4096
PAGE = 32768

# ---- Models ---------------------------------------------------------------------------------------------------------


def make_model(family: str) -> Any:
    import transformers as hf

    common: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
    }
    gated = dict(common, intermediate_size=704, num_key_value_heads=KV_HEADS, head_dim=HEAD)
    if family == "llama":
        return hf.LlamaForCausalLM(hf.LlamaConfig(**gated))
    if family == "qwen3":
        return hf.Qwen3ForCausalLM(hf.Qwen3Config(**gated))
    if family == "gpt2":
        return hf.GPT2LMHeadModel(
            hf.GPT2Config(vocab_size=VOCABULARY, n_embd=HIDDEN, n_layer=LAYERS, n_head=HEADS, n_positions=CONTEXT)
        )
    mla = dict(common, intermediate_size=704, num_key_value_heads=HEADS, first_k_dense_replace=LAYERS, q_lora_rank=None,
               kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=HEAD, v_head_dim=HEAD)  # fmt: skip
    return hf.DeepseekV2ForCausalLM(hf.DeepseekV2Config(**mla))


@functools.cache
def texts() -> tuple[Array, Array]:
    """Tokens to train on, and those of other files."""
    import tokenizers

    tree = Path(__file__).resolve().parents[1]
    folders = [(tree, "**/*.md"), (Path(sysconfig.get_paths()["stdlib"]), "*.py")]
    files = [path for folder, pattern in folders for path in sorted(folder.glob(pattern)) if "build" not in path.parts]
    parts = [[path.read_text(errors="replace") for path in files[part::10]] for part in range(10)]
    seen, unseen = [text for part in parts[1:] for text in part], parts[0]
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(seen, vocab_size=VOCABULARY, show_progress=False)
    ids = [[token for code in tokenizer.encode_batch(part) for token in code.ids] for part in (seen, unseen)]
    return np.array(ids[0]), np.array(ids[1])


def train(family: str, steps: int, threads: int) -> tuple[Any, dict[str, Any]]:
    import torch

    torch.manual_seed(1)
    torch.set_num_threads(threads)
    seen, unseen = texts()
    model, random = make_model(family), np.random.default_rng(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps, pct_start=0.1)
    began = time.monotonic()
    for _ in range(steps):
        starts = random.integers(0, len(seen) - CONTEXT, BATCH)
        batch = torch.from_numpy(np.stack([seen[start : start + CONTEXT] for start in starts]).astype(np.int64))
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    batch = torch.from_numpy(windows(unseen).astype(np.int64))
    model.eval()
    with torch.no_grad():
        held_out = float(model(input_ids=batch, labels=batch).loss)
    about = dict(parameters=sum(p.numel() for p in model.parameters()), steps=steps, loss=round(held_out, 3),
                 seconds=round(time.monotonic() - began))  # fmt: skip
    return model, about


def windows(text: Array) -> Array:
    starts = np.linspace(0, len(text) - CONTEXT, WINDOWS).astype(int)
    return np.stack([text[start : start + CONTEXT] for start in starts])


def caches(model: Any, dtype: str) -> tuple[Cache, Cache]:
    """Of the texts for tables, and of those that are measured."""
    import torch

    model = copy.deepcopy(model).to(getattr(torch, dtype))
    with torch.no_grad():
        found = model(input_ids=torch.from_numpy(windows(texts()[1]).astype(np.int64)), use_cache=True).past_key_values
    parts: tuple[Cache, Cache] = {}, {}
    for layer, cached in enumerate(found.layers):
        k, v = cached.keys, cached.values  # [text, head, token, value]
        tensors = {"k": torch.cat((k, v), -1)} if k.shape[-1] != v.shape[-1] else {"k": k, "v": v}
        for role, tensor in tensors.items():
            integers = tensor.transpose(1, 2).contiguous().view(torch.int32 if dtype == "float32" else torch.int16)
            values = integers.numpy().view(np.uint32 if dtype == "float32" else np.uint16)
            for part, cache in enumerate(parts):
                half = values[part::2]
                cache[role, layer] = half.reshape(-1, *half.shape[2:])
    return parts


# ---- Types of values ------------------------------------------------------------------------------------------------


def widen(bf16: Array, random: np.random.Generator | None) -> Array:
    """FP32 bits of BF16 ones: the lower bits are zero, or random."""
    low = random.integers(0, 1 << 16, bf16.shape, np.uint32) if random is not None else np.uint32(0)
    return bf16.astype(np.uint32) << 16 | low


def to_fp16(fp32: Array) -> Array:
    return np.clip(fp32.view(np.float32), -65504, 65504).astype(np.float16).view(np.uint16)


def fp8_values(mantissa: int, bias: int, largest: int) -> Array:
    """What the codes 0 .. largest stand for."""
    codes = np.arange(largest + 1)
    exponent, fraction = codes >> mantissa, (codes & ((1 << mantissa) - 1)) / (1 << mantissa)
    return np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))


FP8 = {"fp8_e4m3": fp8_values(3, 7, 0x7E), "fp8_e5m2": fp8_values(2, 15, 0x7B)}
SCALES: dict[str, tuple[int, ...] | None] = {"tensor": None, "head": (0, 2), "token": (1, 2)}


def to_fp8(fp32: Array, element: str, scale: str) -> Array:
    """The nearest values, by a scale for each tensor, head or token that makes the largest value that of the type."""
    table, values = FP8[element], fp32.view(np.float32).astype(np.float64)
    largest = np.abs(values).max(axis=SCALES[scale], keepdims=True)
    sizes = np.abs(values) / np.where(largest == 0, 1, largest) * table[-1]
    above = np.clip(np.searchsorted(table, sizes), 1, len(table) - 1)
    below = above - 1
    down, up = sizes - table[below], table[above] - sizes
    codes = np.where((down < up) | ((down == up) & (below % 2 == 0)), below, above).astype(np.uint8)
    signed: Array = codes | (values < 0).astype(np.uint8) << 7
    return signed


# ---- Measuring ------------------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A row: how a cache of a type comes from what there is, and the ratio that it is to reach."""

    element: Any
    mode: Any
    bar: float
    make: Callable[[dict[str, Cache]], Cache]


def mapped(source: str, change: Callable[[Array], Array]) -> Callable[[dict[str, Cache]], Cache]:
    return lambda types: {key: change(array) for key, array in types[source].items()}


KINDS = {
    "BF16, `tiered`": Kind("bf16", "tiered", 1.48, mapped("bf16", lambda a: a)),
    "FP16, `split`": Kind("fp16", "split", 1.15, mapped("fp16", lambda a: a)),
    "BF16 held as FP16, `parts`": Kind("fp16", "parts", 1.45, mapped("bf16", lambda a: to_fp16(widen(a, None)))),
    "FP32, `split`": Kind("fp32", "split", 1.19, mapped("fp32", lambda a: a)),
} | {
    f"{name}, a scale for each {scale}, `base`": Kind(
        element,
        "base",
        bar,
        mapped("fp32", lambda a, e=element, s=scale: to_fp8(a, e, s)),  # type: ignore[misc]
    )
    for name, element, bar in (("E5M2", "fp8_e5m2", 1.38), ("E4M3", "fp8_e4m3", 1.18))
    for scale in SCALES
}
FIELDS = {"bf16": (7, 8), "fp16": (10, 5), "fp32": (23, 8)}  # where the exponent begins, and its bits


def entropy(symbols: Array) -> float:
    counts = np.bincount(symbols.reshape(-1))
    shares = counts[counts > 0] / symbols.size
    return float(-(shares * np.log2(shares)).sum())


def limit_bits(values: Array, element: str) -> float:
    """Bits of a value by the order-0 entropy of exponents; of FP8 that of whole bytes."""
    if element not in FIELDS:
        return entropy(values)
    at, bits = FIELDS[element]
    return 8 * values.itemsize - bits + entropy((values >> at & ((1 << bits) - 1)).astype(np.int64))


class Figures(NamedTuple):
    ratio: float
    limit: float
    zstd: float


def measure(kind: Kind, calib: dict[str, Cache], held: dict[str, Cache]) -> Figures:
    tables, cache = kind.make(calib), kind.make(held)
    book = None
    if kind.mode != "base":  # parts: with tables where they need no more
        book = strait.calibrate(tables, element=kind.element)
    raw = coded = by_zstd = 0
    bits = 0.0
    for key, values in cache.items():
        values = np.ascontiguousarray(values)
        chunk = strait.encode(values, book, mode=kind.mode, element=kind.element, table=key, page_bytes=PAGE)
        back = np.empty_like(values)
        strait.decode(chunk, book, back)
        assert (back == values).all(), key
        raw, coded = raw + values.nbytes, coded + len(chunk)
        bits += limit_bits(values, kind.element) * values.size
        by_zstd += len(zstandard.ZstdCompressor(3).compress(values.tobytes()))
    return Figures(raw / coded, 8 * raw / bits, raw / by_zstd)


# ---- Caches ---------------------------------------------------------------------------------------------------------


def store(path: Path, about: dict[str, Any], parts: list[dict[str, Cache]]) -> None:
    arrays = {
        f"{number}/{kind}/{role}/{layer}": array
        for number, types in enumerate(parts)
        for kind, cache in types.items()
        for (role, layer), array in cache.items()
    }
    np.savez(path, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]


def load(path: Path) -> tuple[dict[str, Any], list[dict[str, Cache]]]:
    parts: list[dict[str, Cache]] = [{}, {}]
    with np.load(path) as file:
        for name in file.files:
            if name != "about":
                number, kind, role, layer = name.split("/")
                parts[int(number)].setdefault(kind, {})[role, int(layer)] = file[name]
        return json.loads(str(file["about"])), parts


def trained(family: str, steps: int, threads: int, keep: Path | None) -> tuple[dict[str, Any], list[dict[str, Cache]]]:
    path = None if keep is None else keep / f"{family}.npz"
    if path is not None and path.exists():
        return load(path)
    model, about = train(family, steps, threads)
    parts: list[dict[str, Cache]] = [{}, {}]
    for name, dtype in (("fp32", "float32"), ("fp16", "float16"), ("bf16", "bfloat16")):
        for types, cache in zip(parts, caches(model, dtype)):
            types[name] = cache
    if path is not None:
        store(path, about, parts)
    return about, parts


def read_corpus(path: Path) -> Cache:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    cache = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + at for at in entry["data_offsets"])
            _, layer, role = name.split(".")
            cache[role, int(layer)] = np.frombuffer(data[begin:end], np.uint16).reshape(entry["shape"])
    return cache


def with_types(cache: Cache) -> dict[str, Cache]:
    """What BF16 lacks of FP32 is random; FP16 is rounded from that."""
    random = np.random.default_rng(1)
    wide = {key: widen(array, random) for key, array in cache.items()}
    return {"bf16": cache, "fp32": wide, "fp16": {key: to_fp16(array) for key, array in wide.items()}}


def corpora(folder: Path) -> Iterator[tuple[str, dict[str, Any], list[dict[str, Cache]]]]:
    """Where there is no other text of a model, the second half of its tokens is measured."""
    for path in sorted(folder.glob("*-kv-calib.safetensors")):
        calib, other = read_corpus(path), path.with_name(path.name.replace("calib", "eval"))
        held = read_corpus(other) if other.exists() else {key: array[len(array) // 2 :] for key, array in calib.items()}
        if not other.exists():
            calib = {key: array[: len(array) // 2] for key, array in calib.items()}
        about = dict(parameters=158360576, loss=1.70, steps=None)
        yield path.name.split("-")[0] + ", corpus", about, [with_types(calib), with_types(held)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="llama,gpt2,qwen3,deepseek")
    options = parser.parse_args()
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    columns: dict[str, dict[str, Figures]] = {}
    found = list(corpora(options.corpus)) if options.corpus is not None else []
    for family in filter(None, options.only.split(",")):
        found.append((family, *trained(family, options.steps, options.threads, options.keep)))
    for name, about, (calib, held) in found:
        shapes = sorted({array.shape for array in held["bf16"].values()})
        print(f"{name}: {about}, {len(held['bf16'])} tensors of {shapes}", flush=True)
        columns[name] = {kind: measure(row, calib, held) for kind, row in KINDS.items()}
    print("\n| values | aim |", " | ".join(columns), "|\n|---|---|" + "---|" * len(columns))
    for kind, row in KINDS.items():
        cells = [columns[name][kind] for name in columns]
        marked = [
            f"{'' if c.ratio >= row.bar else '**'}{c.ratio:.3f}{'' if c.ratio >= row.bar else '**'}" for c in cells
        ]
        print(f"| {kind} | {row.bar:.2f} |",
              " | ".join(f"{text} ({c.limit:.3f}, {c.zstd:.3f})" for text, c in zip(marked, cells)), "|")  # fmt: skip


if __name__ == "__main__":
    main()
