#!/usr/bin/env python3
"""Prefill in one process, decode in another, with transformers: the KV cache of a prompt crosses two daemons.

    transformers_pd.py [--model DIR] [--tokens N] [--gbit RATE] [--device cuda [--gpu-wires LIST]] [--repeat N]
                       [--plot FILE] [--json]

Starts two straitd ($STRAITD, else the one on the PATH) that are joined by TCP: over loopback, or, with --gbit and as
root, over a link of that rate between two network namespaces. With --device cuda the prefill is on the first GPU and
the decode on the last, and chunks go between them as the daemons' option gpu-wires says, or over that link. Without
--model a Llama with random weights is made, small for the CPU and larger for GPUs. Each way of sending (raw and coded;
the whole cache after the prefill, and layer by layer during it) is repeated, the cache that arrives is compared with
what was sent, and the tokens with those of one process that does both halves. Printed are the medians:

    prefill   from the prompt to the end of the source's forward pass
    then      from there until all pages are in place at the sink: what the network costs
    first     from the prompt to the first token that the sink computes

--plot draws them as bars, in SVG.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, LlamaForCausalLM

import strait
from strait import service
from strait.service import Coding, EventType, Layout, Region, State

PAGE = 32  # tokens
NEW = 16  # tokens that the sink computes
PAGES = 128

# ---- The model -------------------------------------------------------------------------------------------------------


SHAPES = {  # 4 KiB of cache for a token, and 64
    "cpu": {
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
    },
    "cuda": {
        "hidden_size": 2048,
        "intermediate_size": 4096,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
}


def make_model(folder: Path, device: str) -> None:
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=1024, max_position_embeddings=PAGES * PAGE, **SHAPES[device])
    with torch.device(device):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, parameter.shape[1] ** -0.5)
    model.save_pretrained(folder)


def load_model(folder: str | Path, device: str):
    if device != "cpu":  # equal tokens are only to be had of equal sums
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()


class Paged:
    """The model's cache in pages: for each layer [pages, heads, tokens, K and V], in memory that the daemon maps."""

    def __init__(self, config, client: service.Client, device: str):
        heads = config.num_key_value_heads
        self.size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, PAGES, heads, PAGE, 2 * self.size)
        if device == "cpu":
            memory = service.alloc(2 * int(np.prod(shape)))
            self.layers = torch.frombuffer(memory, dtype=torch.bfloat16)[: int(np.prod(shape))].view(shape)
        else:
            self.layers = torch.zeros(shape, dtype=torch.bfloat16, device=device)
        regions = {
            ("kv", number): Region(layer, heads=heads, layout=Layout.HND, tokens=PAGE)
            for number, layer in enumerate(self.layers)
        }
        self.pool = client.register(regions, compat="transformers_pd")

    def put(self, number: int, keys: torch.Tensor, values: torch.Tensor, ids: torch.Tensor):
        """[heads, tokens, size] of K and V into these pages. On a GPU, returns an event behind that."""
        padded = keys.new_zeros(keys.shape[0], len(ids) * PAGE, 2 * self.size)
        padded[:, : keys.shape[1], : self.size], padded[:, : keys.shape[1], self.size :] = keys, values
        self.layers[number][ids] = padded.view(keys.shape[0], len(ids), PAGE, -1).transpose(0, 1)
        if not keys.is_cuda:
            return None
        event = torch.cuda.Event(interprocess=True)
        event.record()
        return event

    def get(self, number: int, tokens: int, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.layers[number][ids].transpose(0, 1).flatten(1, 2)[None, :, :tokens]
        return rows[..., : self.size].contiguous(), rows[..., self.size :].contiguous()


def sums(cache: DynamicCache, tokens: int) -> list[int]:
    """A checksum of each layer's K and V of the first tokens."""
    pairs = [torch.cat((layer.keys, layer.values), -1)[..., :tokens, :] for layer in cache.layers]
    return [zlib.crc32(pair.contiguous().view(torch.int16).cpu().numpy()) for pair in pairs]


def next_tokens(model, cache: DynamicCache, token: int, count: int) -> list[int]:
    """Greedy; the first one is given."""
    tokens = [token]
    while len(tokens) < count:
        output = model(torch.tensor([[tokens[-1]]], device=model.device), past_key_values=cache, use_cache=True)
        tokens.append(int(output.logits[0, -1].argmax()))
    return tokens


# ---- The two processes -----------------------------------------------------------------------------------------------


def until_over(client: service.Client, transfer: service.Transfer, on_layer=lambda layer: None) -> service.Event:
    """The verdict. Ends with an exception if it is not DONE."""
    while True:
        for event in client.wait(30):
            if event.transfer is not transfer:
                continue
            if event.type == EventType.LAYER:
                on_layer(event.layer)
            if event.state == State.FAILED:
                raise RuntimeError(f"the transfer failed: {event.reason.text}: {event.text}")
            if event.state == State.DONE:
                return event


def first_token(model, cache: DynamicCache, prompt: list[int]) -> int:
    return int(model(torch.tensor([prompt], device=model.device), past_key_values=cache).logits[0, -1].argmax())


def source(model_folder: str, socket: str, device: str, calls, answers) -> None:
    """prefill: (key, prompt, coding, by layer, the sink's pool) -> times, sums; without a key: one process's tokens."""
    torch.set_num_threads(1)
    model = load_model(model_folder, device)
    client = service.Client(socket)
    paged = Paged(model.config, client, device)
    answers.put(paged.pool.export(timeout=10))
    with torch.no_grad():
        for key, prompt, coding, by_layer, blob in iter(calls.get, None):
            ids = list(range(-(-len(prompt) // PAGE)))
            cache = DynamicCache()
            if key is None:
                answers.put(next_tokens(model, cache, first_token(model, cache, prompt), NEW))
                continue
            paged.pool.set_policy(Coding[coding.upper()])
            offer = paged.pool.offer(key, ids, lease=30, later=True)
            peer = client.import_peer(blob)
            offer.start(peer)

            rows = torch.tensor(ids, device=device)

            def ready(number: int, cache=cache, rows=rows, offer=offer, by_layer=by_layer) -> None:
                layer = cache.layers[number]
                written = paged.put(number, layer.keys[0], layer.values[0], rows)
                if by_layer:
                    offer.append(layers=range(number, number + 1), ready=written)

            hooks = [
                layer.register_forward_hook(lambda *_, number=number: ready(number))
                for number, layer in enumerate(model.model.layers)
            ]
            began = time.monotonic()
            token = first_token(model, cache, prompt)  # on a GPU, all that the pass has queued is done then
            ended = time.monotonic()
            for hook in hooks:
                hook.remove()
            offer.append(last=True, aux=token.to_bytes(4, "little"))
            until_over(client, offer)
            offer.release()
            peer.remove()
            answers.put((began, ended, sums(cache, len(prompt))))
    client.close()


def sink(model_folder: str, socket: str, device: str, calls, answers) -> None:
    """decode: (key, tokens of the prompt) -> tokens, sums, times of all pages and of the first token."""
    torch.set_num_threads(1)
    model = load_model(model_folder, device)
    client = service.Client(socket)
    paged = Paged(model.config, client, device)
    answers.put(paged.pool.export(timeout=10))
    with torch.no_grad():
        for key, length in iter(calls.get, None):
            ids = list(range(PAGES - 1, PAGES - 1 - -(-length // PAGE), -1))
            expectation = paged.pool.expect(key, ids, deadline=30)
            answers.put(None)  # the source may begin
            event = until_over(client, expectation)
            there = time.monotonic()
            cache, rows = DynamicCache(), torch.tensor(ids, device=device)
            for number in range(model.config.num_hidden_layers):
                cache.update(*paged.get(number, length, rows), number)
            given = int.from_bytes(event.data, "little")
            first = next_tokens(model, cache, given, 2)
            at = time.monotonic()
            tokens = first[:1] + next_tokens(model, cache, first[1], NEW - 1)
            answers.put((tokens, sums(cache, length), there, at))
            expectation.release()
    client.close()


class Worker:
    def __init__(self, target, *arguments):
        context = multiprocessing.get_context("spawn")
        self.calls, self.answers = context.Queue(), context.Queue()
        self.process = context.Process(target=target, args=(*arguments, self.calls, self.answers), daemon=True)
        self.process.start()

    def answer(self):
        while True:
            try:
                return self.answers.get(timeout=1)
            except Exception:
                if not self.process.is_alive():
                    raise RuntimeError("a worker has ended") from None


# ---- The daemons -----------------------------------------------------------------------------------------------------


def run(*command: str) -> None:
    subprocess.run(command, check=True)


@contextmanager
def link(gbit: float | None):
    """How each daemon is started, and its address; with a rate between two network namespaces."""
    if gbit is None:
        yield [[], []], ["127.0.0.1:0", "127.0.0.1:0"]
        return
    names = [f"strait-{os.getpid()}-{side}" for side in "ab"]
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", "veth0", "netns", names[0], "type", "veth", "peer", "name", "veth0", "netns", names[1])
        for number, name in enumerate(names, 1):
            inside = ["ip", "netns", "exec", name]
            run(*inside, "ip", "address", "add", f"10.99.0.{number}/24", "dev", "veth0")
            run(*inside, "ip", "link", "set", "lo", "up")
            run(*inside, "ip", "link", "set", "veth0", "up")
            run(*inside, "tc", "qdisc", "add", "dev", "veth0", "root", "tbf", "rate", f"{int(gbit * 1000)}mbit",
                "burst", "256kb", "latency", "50ms")  # fmt: skip
        yield [["ip", "netns", "exec", name] for name in names], ["10.99.0.1:7601", "10.99.0.2:7601"]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL)


@contextmanager
def daemons(folder: Path, book: Path, options):
    """Sockets of the source's and the sink's daemon."""
    more = ["--transports", "tcp"]
    if options.device == "cuda" and not options.gbit:
        more = ["--transports", "shm", "--gpu-wires", options.gpu_wires]
    if options.gbit:
        more.append("--insecure-no-auth")
    straitd = os.environ.get("STRAITD") or shutil.which("straitd")
    if straitd is None:
        sys.exit("transformers_pd.py: no straitd on the PATH: set STRAITD")
    with link(options.gbit) as (prefixes, addresses):
        sockets = [folder / "source.sock", folder / "sink.sock"]
        started = [
            subprocess.Popen(
                [*prefix, straitd, "--socket", str(socket), "--listen", address, "--metrics", "", "--codebook", str(book),
                 *more],
                stderr=(folder / f"{socket.stem}.log").open("w"),
            )
            for prefix, socket, address in zip(prefixes, sockets, addresses)
        ]  # fmt: skip
        try:
            end = time.monotonic() + 10
            while not all(socket.exists() for socket in sockets):
                if time.monotonic() > end or any(one.poll() is not None for one in started):
                    sys.exit("straitd did not start:\n" + "".join(p.read_text() for p in folder.glob("*.log")))
                time.sleep(0.01)
            yield [str(socket) for socket in sockets]
        finally:
            for one in started:
                one.send_signal(signal.SIGTERM)
            for one in started:
                one.wait(20)


# ---- The comparison --------------------------------------------------------------------------------------------------


def calibrate(model_folder: Path, path: Path, device: str, prompt: list[int]) -> None:
    """A codebook set of the model's own cache, of another prompt than those that are sent."""
    model = load_model(model_folder, device)
    cache = DynamicCache()
    with torch.no_grad():
        first_token(model, cache, prompt)
    arrays = {}
    for number, layer in enumerate(cache.layers):
        arrays["k", number], arrays["v", number] = layer.keys.contiguous().cpu(), layer.values.contiguous().cpu()
    strait.calibrate(arrays).save(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, help="folder of a Llama-like model; default: a small one is made")
    parser.add_argument("--tokens", type=int, default=1024, help="of the prompt (default: 1024)")
    parser.add_argument("--gbit", type=float, help="rate of the link between the daemons; needs root")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the models are (default: cpu)")
    parser.add_argument("--gpu-wires", default="peer", help="of the daemons, without --gbit (default: peer)")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--plot", type=Path, help="SVG file of the medians")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not PAGE < options.tokens <= (PAGES - 1) * PAGE:
        parser.error(f"--tokens must be above {PAGE} and at most {(PAGES - 1) * PAGE}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = options.model or folder / "model"
        if options.model is None:
            make_model(model, options.device)
        chance = np.random.default_rng(3)
        prompts = [chance.integers(3, 1000, options.tokens).tolist() for _ in range(options.repeat + 1)]
        calibrate(model, folder / "set.strait", options.device, chance.integers(3, 1000, 1024).tolist())
        with daemons(folder, folder / "set.strait", options) as sockets:
            last = "cpu" if options.device == "cpu" else f"cuda:{torch.cuda.device_count() - 1}"
            first = "cpu" if options.device == "cpu" else "cuda:0"
            workers = [Worker(source, str(model), sockets[0], first), Worker(sink, str(model), sockets[1], last)]
            return compare(options, workers, prompts)


SENT = {False: "afterwards", True: "layer by layer"}
PARTS = (("prefill", "#b8c0cc"), ("then: the network", "#d1495b"), ("the sink's first token", "#30638e"))


def draw(rows: list[dict], title: str) -> str:
    """A bar for each row: what is before its first token, in milliseconds."""
    left, width, step = 150, 560, 30
    scale = width / max(row["first"] for row in rows)
    height = 70 + step * len(rows)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 90}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="22" font-size="15">{title}, ms</text>',
    ]
    for i, row in enumerate(rows):
        x, y = float(left), 40 + step * i
        parts = (row["prefill"], row["then"], max(row["first"] - row["prefill"] - row["then"], 0))
        drawn.append(f'<text x="10" y="{y + 15}">{row["coding"]}, {SENT[row["by_layer"]]}</text>')
        for seconds, (_, color) in zip(parts, PARTS):
            drawn.append(f'<rect x="{x:.1f}" y="{y}" width="{seconds * scale:.1f}" height="20" fill="{color}"/>')
            x += seconds * scale
        drawn.append(f'<text x="{x + 6:.1f}" y="{y + 15}">{1e3 * row["first"]:.0f}</text>')
    for i, (name, color) in enumerate(PARTS):
        x, y = left + 190 * i, height - 22
        drawn.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{color}"/>')
        drawn.append(f'<text x="{x + 18}" y="{y + 11}">{name}</text>')
    return "\n".join([*drawn, "</svg>", ""])


def compare(options, workers: list[Worker], prompts: list[list[int]]) -> int:
    prefill, decode = workers
    blobs = [worker.answer() for worker in workers]
    rows, wrong = [], {"cache": 0, "tokens": 0}  # prompts
    for coding in ("raw", "tiered", "auto"):
        for by_layer in (False, True):
            times = []
            for number, prompt in enumerate(prompts):
                key = f"{coding}-{by_layer}-{number}"
                decode.calls.put((key, len(prompt)))
                decode.answer()
                prefill.calls.put((key, prompt, coding, by_layer, blobs[1]))
                tokens, came, there, first = decode.answer()
                began, ended, sent = prefill.answer()
                prefill.calls.put((None, prompt, None, None, None))
                wrong["cache"] += came != sent
                wrong["tokens"] += tokens != prefill.answer()
                times.append((ended - began, max(there - ended, 0), first - began))
            medians = [statistics.median(column) for column in zip(*times[1:])]  # the first one connects
            rows.append({"coding": coding, "by_layer": by_layer, **dict(zip(("prefill", "then", "first"), medians))})
    for worker in workers:
        worker.calls.put(None)
        worker.process.join(10)
    where = "loopback" if options.device == "cpu" else f"GPU wires {options.gpu_wires}"
    if options.gbit:
        where = f"a link of {options.gbit:g} Gbit/s"
    if options.plot:
        options.plot.write_text(draw(rows, f"{options.tokens} tokens over {where}: from the prompt to the first token"))
    if options.json:
        print(json.dumps({"schema": "strait-disaggregated", "version": 2, "tokens": options.tokens, "gbit": options.gbit,
                          "device": options.device, "gpu_wires": options.gpu_wires, "wrong": wrong,
                          "rows": rows}, indent="\t"))  # fmt: skip
    else:
        print(f"{options.tokens} tokens over {where}; medians of {options.repeat}, ms")
        print(f"{'coding':8} {'sent':16} {'prefill':>8} {'then':>8} {'first':>8}")
        for row in rows:
            print(
                f"{row['coding']:8} {SENT[row['by_layer']]:16}",
                *(f"{1e3 * row[name]:8.1f}" for name in ("prefill", "then", "first")),
            )
        for name, what in (("cache", "caches equal to those sent"), ("tokens", "tokens equal to those of one process")):
            print(f"{what}: " + ("yes, all" if not wrong[name] else f"NO, {wrong[name]} prompts differ"))
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
