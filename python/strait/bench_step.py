"""Whole training steps with and without libstrait-coll: FSDP2 of a Llama of 1.1 billion parameters, by torch alone.

    python -m strait.bench_step                                  all GPUs of this host, over every link
    python -m strait.bench_step --links shm --preload --json

Parameters are BF16, gradients are added up in FP32. Each rank has two models of the same beginning, one of torch's own
collectives and one of strait.torch.fsdp2, which take turns: some steps of the one, some of the other. Both are given
the same tokens, which are random. Losses of all steps, and parameters at the end, are compared bit for bit.

Each link has processes of its own, started by torchrun, as NCCL reads its settings once: `as-is`, `shm` (with
NCCL_P2P_DISABLE=1) and `socket` (with NCCL_SHM_DISABLE=1 too). What STRAIT_COLL and the like say holds. With --preload
each link is measured a second time with the library under torch's own NCCL, where both models have torch's
collectives and every second turn is pinned to raw (strait_coll_pin).

Exit status: 1 a link failed or, of two ranks, losses or parameters differ; 77 fewer than two GPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from . import __version__, _nccl

LINKS = {
    "as-is": {},
    "shm": {"NCCL_P2P_DISABLE": "1"},
    "socket": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
}
SKIPPED = 77


# ---- The model ------------------------------------------------------------------------------------------------------


class Shape(NamedTuple):
    """Sizes of a Llama. Those by default are of Llama 3.2 1B, with fewer words: 1.1 billion parameters."""

    layers: int = 16
    width: int = 2048
    inner: int = 8192
    heads: int = 32
    kv_heads: int = 8
    words: int = 32000

    @property
    def head(self) -> int:
        return self.width // self.heads


class Norm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, x.shape[-1:], self.weight, 1e-5)


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotary embedding. x: [batch, heads, tokens, size]; angles: [tokens, size / 2]."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.q = nn.Linear(shape.width, shape.width, bias=False)
        self.kv = nn.Linear(shape.width, 2 * shape.kv_heads * shape.head, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        shape, each = self.shape, self.shape.heads // self.shape.kv_heads
        q = self.q(x).view(batch, tokens, shape.heads, shape.head).transpose(1, 2)
        kv = self.kv(x).view(batch, tokens, 2, shape.kv_heads, shape.head)
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)
        q, k = rotate(q, angles), rotate(k, angles)
        k, v = (  # every KV head for its query heads
            part[:, :, None].expand(-1, -1, each, -1, -1).reshape(batch, shape.heads, tokens, shape.head)
            for part in (k, v)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, shape.width))


class Layer(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.norm1, self.norm2 = Norm(shape.width), Norm(shape.width)
        self.attention = Attention(shape)
        self.gate = nn.Linear(shape.width, shape.inner, bias=False)
        self.up = nn.Linear(shape.width, shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), angles)
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.words, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.width)
        self.head = nn.Linear(shape.width, shape.words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        half = self.shape.head // 2
        steps = 500000.0 ** (-torch.arange(half, device=tokens.device, dtype=torch.float32) / half)
        angles = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float32)[:, None] * steps
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, angles)
        return self.head(self.norm(x))


def make_model(shape: Shape, device: torch.device) -> nn.Module:
    """Sharded over all ranks, with the same values at every call."""
    torch.manual_seed(1)
    with torch.device(device):
        model = Llama(shape).to(torch.bfloat16)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


# ---- Measuring ------------------------------------------------------------------------------------------------------


class Way:
    """A model, which takes steps in one way. enter: what has to be done before a turn."""

    def __init__(self, name: str, shape: Shape, device: torch.device, enter: Callable[[], None] = lambda: None):
        self.name, self.enter = name, enter
        self.model = make_model(shape, device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.losses: list[float] = []
        self.turns: list[list[float]] = []  # seconds of each step

    def step(self, tokens: torch.Tensor) -> Any:
        logits = self.model(tokens[:, :-1])
        loss: Any = nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def turn(self, batches: list[torch.Tensor], timed: bool) -> None:
        self.enter()
        seconds = []
        for tokens in batches:
            begin = time.perf_counter()
            self.losses.append(self.step(tokens).item())  # waits for the GPU
            seconds.append(time.perf_counter() - begin)
        if timed:
            self.turns.append(seconds)


def batches_of(first: int, count: int, options: argparse.Namespace, shape: Shape, device: torch.device) -> list[Any]:
    """Tokens of this rank in some steps, the same for every way."""
    random = torch.Generator(device=device)
    size = (options.batch, options.length + 1)
    return [
        torch.randint(shape.words, size, generator=random.manual_seed(1000 * step + dist.get_rank()), device=device)
        for step in range(first, first + count)
    ]


def run_turns(ways: list[Way], options: argparse.Namespace, shape: Shape, device: torch.device) -> None:
    """A warm-up, then rounds in which every way has a turn: each begins every second round."""
    step = 0
    for index, count in enumerate([options.warmups] + [options.steps] * options.rounds):
        batches = batches_of(step, count, options, shape, device)
        for way in ways if index % 2 == 0 else ways[::-1]:
            way.turn(batches, timed=index > 0)
        step += count


def differences(ways: list[Way]) -> list[str]:
    """What is not the same bits, on any rank."""
    first, second = ways
    found = []
    if first.losses != second.losses:
        step = [a == b for a, b in zip(first.losses, second.losses)].index(False)
        found.append(f"losses from step {step} on: {first.losses[step]!r} and {second.losses[step]!r}")
    for (name, a), b in zip(first.model.named_parameters(), second.model.parameters()):
        pair: tuple[Any, Any] = (a, b)
        local = [part.to_local().detach().contiguous().view(torch.uint8) for part in pair]
        if not torch.equal(local[0], local[1]):
            found.append(f"parameter {name}")
            break
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, found)
    return [f"rank {rank}: {text}" for rank, texts in enumerate(told) for text in texts]


def rows_of(ways: list[Way], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Per way: tokens per second of all ranks together, and by turns the first way's time by its own."""
    tokens = options.batch * options.length * dist.get_world_size()
    medians = [[statistics.median(turn) for turn in way.turns] for way in ways]
    rows = []
    for way, own in zip(ways, medians):
        speeds = sorted(tokens / seconds for turn in way.turns for seconds in turn)
        quotients = sorted(other / mine for other, mine in zip(medians[0], own))
        rows.append(
            {
                "way": way.name,
                "tokens_per_s": {"p50": statistics.median(speeds), "min": speeds[0], "max": speeds[-1]},
                "x": {"p50": statistics.median(quotients), "min": quotients[0], "max": quotients[-1]},
                "step_s": way.turns,
            }
        )
    return rows


def make_ways(options: argparse.Namespace, shape: Shape, device: torch.device) -> list[Way]:
    if options.preload:
        return [
            Way("preloaded, raw", shape, device, lambda: _nccl.pin(None, _nccl.Choice.RAW)),
            Way("preloaded", shape, device, lambda: _nccl.pin(None, _nccl.Choice.AUTO)),
        ]
    from .torch import fsdp2

    ways = [Way(name, shape, device) for name in ("torch", "strait")]
    fsdp2.install(ways[1].model)
    return ways


def measure(options: argparse.Namespace, shape: Shape, device: torch.device) -> dict[str, Any]:
    """What a rank has to do for one link. torch.distributed is initialized."""
    ways = make_ways(options, shape, device)
    run_turns(ways, options, shape, device)
    result = {
        "links": options.links,
        "ranks": dist.get_world_size(),
        "parameters": sum(parameter.numel() for parameter in ways[0].model.parameters()),
        "rows": rows_of(ways, options),
        "losses": ways[0].losses,
        "different": differences(ways),
        "report": _nccl.report(None),
    }
    if not options.preload:
        from .torch import close

        close()
    return result


def work(options: argparse.Namespace) -> None:
    """A rank, as torchrun has started it."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(True)
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False  # which would only take time
    dist.init_process_group("nccl", device_id=device)
    result = measure(options, Shape(), device)
    if dist.get_rank() == 0:
        result["device"] = torch.cuda.get_device_name(device)
        cuda_nccl: Any = torch.cuda.nccl
        result["torch"], result["nccl"] = torch.__version__, ".".join(map(str, cuda_nccl.version()))
        Path(options.result).write_text(json.dumps(result))
    dist.destroy_process_group()


# ---- All links ------------------------------------------------------------------------------------------------------


class Failure(Exception):
    """Told without a traceback."""


def environment_of(links: str, options: argparse.Namespace, preload: bool) -> dict[str, str]:
    environment = {**os.environ, **LINKS[links], "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "4")}
    if options.sms:
        environment |= {"STRAIT_COLL_SMS": str(options.sms), "NCCL_MAX_CTAS": str(options.sms)}
    if preload:
        environment["LD_PRELOAD"] = f"{_nccl.path()} {os.environ.get('LD_PRELOAD', '')}".strip()
    return environment


@contextlib.contextmanager
def process_of(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Of a session of its own, all of which has ended at the end."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def reason_of(output: str) -> str:
    """What the ranks have printed last, without what torchrun prints of their ends."""
    lines = output.splitlines()
    ends = [i for i, line in enumerate(lines) if "failed (exitcode" in line or "closing signal" in line]
    return "\n".join(lines[: ends[0] if ends else len(lines)][-30:])


def run_links(links: str, options: argparse.Namespace, preload: bool) -> dict[str, Any]:
    """One link, in processes of its own. Failure: they have failed."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.gpus}"]
        command += ["-m", "strait.bench_step", "--result", str(result), "--links", links]
        for name in ("batch", "length", "rounds", "steps", "warmups"):
            command += [f"--{name}", str(getattr(options, name))]
        command += ["--preload"] if preload else []
        with process_of(command, environment_of(links, options, preload)) as process:
            try:
                output, _ = process.communicate(timeout=options.timeout)
            except subprocess.TimeoutExpired:
                raise Failure(f"{links}: not done after {options.timeout} s") from None
        if process.returncode != 0 or not result.exists():
            raise Failure(f"{links}: exit status {process.returncode}\n{reason_of(output)}")
        if os.environ.get("STRAIT_COLL_PRINT") == "1":
            print("\n".join(line for line in output.splitlines() if "strait-coll" in line), file=sys.stderr)
        loaded: dict[str, Any] = json.loads(result.read_text())
        return loaded


def counts_of(report: str) -> str:
    """Of collectives of FSDP2, how many were compressed: of the text of a report."""
    found = []
    for line in report.splitlines():
        words = line.split()
        if words and words[0] in ("all_gather", "reduce_scatter") and len(words) > 8:
            found.append(f"{words[0]} {words[1]} {words[7]}/{words[2]}")
    return ", ".join(found)


def is_wrong(result: dict[str, Any]) -> bool:
    """Different bits. Sums of more than two ranks may differ from NCCL's (docs/collectives.md, "Order of sums")."""
    return bool(result["different"]) and result["ranks"] == 2


def print_result(result: dict[str, Any]) -> None:
    for row in result["rows"]:
        speed, x = row["tokens_per_s"], row["x"]
        print(
            f"{result['links']:<7} {row['way']:<15} {speed['p50']:>9.0f} {speed['min']:>9.0f} {speed['max']:>9.0f}"
            f" {x['p50']:>7.3f} {x['min']:>7.3f} {x['max']:>7.3f}"
        )
    same = "losses and parameters are the same" if not result["different"] else "different, as sums of more ranks are"
    same = "DIFFERENT" if is_wrong(result) else same
    print(f"{'':<7} {same} after {len(result['losses'])} steps; compressed: {counts_of(result['report'])}")
    for text in result["different"]:
        print(f"{'':<7} {text}")
    sys.stdout.flush()


def run_all(options: argparse.Namespace) -> int:
    """Returns the exit status."""
    results, status = [], 0
    quiet = contextlib.redirect_stdout(sys.stderr) if options.json else contextlib.nullcontext()
    with quiet:
        print(
            f"{'links':<7} {'way':<15} {'tokens/s':>9} {'min':>9} {'max':>9} {'x':>7} {'min':>7} {'max':>7}", flush=True
        )
        for links in options.links.split(","):
            for preload in (False, True) if options.preload else (False,):
                try:
                    results.append(run_links(links, options, preload))
                except Failure as failure:
                    results.append({"links": links, "preload": preload, "failed": str(failure)})
                    print(failure, flush=True)
                    status = 1
                    continue
                results[-1]["preload"] = preload
                print_result(results[-1])
                status |= is_wrong(results[-1])
    whole = {
        "version": __version__,
        "settings": {name: value for name, value in os.environ.items() if name.startswith(("STRAIT_COLL", "NCCL_"))},
        "sms": options.sms,
        "batch": options.batch,
        "length": options.length,
        "links": results,
    }
    if options.json:
        print(json.dumps(whole))
    if options.save:
        Path(options.save).write_text(json.dumps(whole))
    return status


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m strait.bench_step", description=(__doc__ or "").split("\n\n")[0], allow_abbrev=False
    )
    parser.add_argument("--links", default=",".join(LINKS), help=f"of {', '.join(LINKS)}: all, without it")
    parser.add_argument("--gpus", type=int, help="so many ranks: all GPUs, without it")
    parser.add_argument("--preload", action="store_true", help="also with the library preloaded")
    parser.add_argument("--sms", type=int, help="multiprocessors that NCCL, and coding, may take (STRAIT_COLL_SMS)")
    parser.add_argument("--batch", type=int, default=4, help="sequences of a rank in a step (4)")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a sequence (2048)")
    parser.add_argument("--rounds", type=int, default=4, help="turns of each way (4)")
    parser.add_argument("--steps", type=int, default=5, help="steps of a turn (5)")
    parser.add_argument("--warmups", type=int, default=6, help="steps of each way before (6)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that a link may take (300)")
    parser.add_argument("--json", action="store_true", help="JSON on stdout, the table on stderr")
    parser.add_argument("--save", metavar="FILE", help="JSON to a file")
    parser.add_argument("--result", help=argparse.SUPPRESS)  # of a rank
    options = parser.parse_args(arguments)
    for links in options.links.split(","):
        if links not in LINKS:
            parser.error(f"no links '{links}': there are {', '.join(LINKS)}")
    for name in ("batch", "length", "rounds", "steps"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} has to be 1 or more")
    return options


def main() -> int:
    options = parse()
    if options.result:
        work(options)
        return 0
    options.gpus = options.gpus or torch.cuda.device_count()
    if options.gpus < 2 or torch.cuda.device_count() < options.gpus:
        print(f"skipped: {torch.cuda.device_count()} GPUs, {max(2, options.gpus)} are needed")
        return SKIPPED
    try:
        _nccl.library()
    except ImportError as failure:
        print(failure, file=sys.stderr)
        return 1
    return run_all(options)


if __name__ == "__main__":
    sys.exit(main())
