#!/usr/bin/env python3
"""PyTorch over NCCL with or without libstrait-coll: FSDP2, DDP, all-to-all, all-reduce, CUDA graphs.

  LD_PRELOAD=libstrait-coll.so.0 torchrun --nproc-per-node=2 collective_pytorch.py [PART ...]
  torchrun --nproc-per-node=2 collective_pytorch.py --direct [PART ...]

Preloaded, the library has all of NCCL's calls, and nothing in here knows of it. With --direct there is no preload:
FSDP2 and DDP are given collectives of the package strait (strait.torch), which call the library; other parts are left
out.

Each rank prints one line for each part: its loss, and a sha256 of all losses and parameters, or of all that arrived. They
are the same bits in every run with as many ranks; what took how long goes to stderr. collective_pytorch.sh runs it both
ways and compares.
"""

import hashlib
import os
import struct
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

STEPS = 20
WIDTH, HEADS, LAYERS, VOCABULARY = 1024, 16, 4, 4096
BATCH, LENGTH = 4, 256
REPLAYS = 100
DIRECT = "--direct" in sys.argv[1:]
if DIRECT:
    import strait.torch
    from strait.torch import ddp_hook, fsdp2


class Block(nn.Module):
    """One layer of a transformer. Its attention is written out: the fused kernels add up in no fixed order."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def attend(self, x):
        q, k, v = (part.view(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Digest:
    """A sha256 of numbers and of the bits of tensors."""

    def __init__(self):
        self.hash = hashlib.sha256()

    def add_number(self, number):
        self.hash.update(struct.pack("<d", number))

    def add_tensor(self, tensor):
        self.hash.update(tensor.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes())

    def text(self):
        return self.hash.hexdigest()


def say(name, text):
    print(f"rank {dist.get_rank()} {name:<22} {text}", flush=True)


def say_time(name, text):
    if dist.get_rank() == 0:
        print(f"{name:<22} {text}", file=sys.stderr, flush=True)


# ---- Training -------------------------------------------------------------------------------------------------------


def make_model(device):
    torch.manual_seed(1)  # the same on all ranks
    return Transformer().to(device)


def train(name, model, device):
    """STEPS steps on tokens of this rank's own; a line of the losses and of what the parameters became."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    random = torch.Generator(device=device).manual_seed(100 + dist.get_rank())
    digest, times = Digest(), []
    for _ in range(STEPS):
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=random, device=device)
        begin = time.perf_counter()
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        digest.add_number(loss.item())  # waits for the GPU
        times.append(time.perf_counter() - begin)
    for parameter in model.parameters():
        digest.add_tensor(parameter.to_local() if hasattr(parameter, "to_local") else parameter)
    say(name, f"loss {loss.item():.6f} sha256 {digest.text()}")
    say_time(name, f"{1e3 * sorted(times)[STEPS // 2]:.2f} ms a step")


def run_fsdp(name, device, reduce_dtype):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype)
    model = make_model(device)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    if DIRECT:
        fsdp2.install(model)
    train(name, model, device)


def run_fsdp_bf16(device):
    run_fsdp("fsdp2-reduce-bf16", device, torch.bfloat16)


def run_fsdp_fp32(device):
    run_fsdp("fsdp2-reduce-fp32", device, torch.float32)  # gradients are BF16 values, widened


def run_ddp_fp32(device):
    model = DistributedDataParallel(make_model(device), device_ids=[device.index])
    if DIRECT:
        model.register_comm_hook(None, ddp_hook)
    train("ddp-fp32", model, device)


def run_ddp_bf16(device):
    model = DistributedDataParallel(make_model(device), device_ids=[device.index])
    # Gradients are rounded to BF16 before they are added up.
    hook = default_hooks.bf16_compress_wrapper(ddp_hook) if DIRECT else default_hooks.bf16_compress_hook
    model.register_comm_hook(None, hook)
    train("ddp-bf16", model, device)


# ---- Single calls ---------------------------------------------------------------------------------------------------


def values_of(rank, count, device, dtype=torch.bfloat16, turn=0):
    """Values that a rank sends, which all can compute."""
    random = torch.Generator(device=device).manual_seed(1000 * (turn + 1) + rank)
    return torch.randn(count, generator=random, device=device).mul_(0.02).to(dtype)


def require_same(name, got, expected):
    as_bytes = [tensor.contiguous().view(torch.uint8) for tensor in (got, expected)]
    if not torch.equal(*as_bytes):
        raise SystemExit(f"rank {dist.get_rank()} {name}: what arrived is not what was sent")


def run_all_to_all(device):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        digest = Digest()
        for turn, count in enumerate((1, 1000, 4096 * 127, 1 << 22)):
            sent = [values_of(r, ranks * count, device, dtype, turn).view(ranks, count) for r in range(ranks)]
            got = torch.empty(ranks * count, dtype=dtype, device=device)
            dist.all_to_all_single(got, sent[rank].flatten())
            require_same("all_to_all", got, torch.cat([values[rank] for values in sent]))
            digest.add_tensor(got)
        say(f"all-to-all-{str(dtype)[6:]}", f"sha256 {digest.text()}")


def run_all_to_all_uneven(device):
    """From r to s go as many values as this says: none, too."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    counts = [[(5 * r + 3 * s) % 7 * 100003 for s in range(ranks)] for r in range(ranks)]
    sent = [values_of(r, sum(counts[r]), device).split(counts[r]) for r in range(ranks)]
    got = torch.empty(sum(counts[r][rank] for r in range(ranks)), dtype=torch.bfloat16, device=device)
    dist.all_to_all_single(got, torch.cat(sent[rank]), [counts[r][rank] for r in range(ranks)], counts[rank])
    require_same("all_to_all_uneven", got, torch.cat([values[rank] for values in sent]))
    digest = Digest()
    digest.add_tensor(got)
    say("all-to-all-uneven", f"sha256 {digest.text()}")


def sums_of(values, dtype):
    """Of two ranks every order gives this."""
    return (values[0].float() + values[1].float()).to(dtype)


def run_sums(device, kinds):
    """In place, of odd counts too. Kinds are types of the values, and of what they are sent as."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for name, values_dtype, dtype in kinds:
        digest = Digest()
        for turn, count in enumerate((1, 1000, 4096 * 127 + 5, 1 << 22, (1 << 22) + 8191, 1 << 22)):
            sent = [values_of(r, count, device, values_dtype, turn).to(dtype) for r in range(ranks)]
            got = sent[rank].clone()
            dist.all_reduce(got)
            if ranks == 2:
                require_same(f"all_reduce {name}, {count} values", got, sums_of(sent, dtype))
            digest.add_tensor(got)
        say(f"all-reduce-{name}", f"sha256 {digest.text()}")


def run_all_reduce(device):
    """BF16, and FP32 that carries it, as gradients do."""
    run_sums(device, (("bf16", torch.bfloat16, torch.bfloat16), ("fp32-bf16", torch.bfloat16, torch.float32)))


def run_all_reduce_full(device):
    """Values with mantissas that need more room."""
    run_sums(device, (("fp16", torch.float16, torch.float16), ("fp32", torch.float32, torch.float32)))


def run_graph_sum(device):
    """An all-reduce that is captured once and replayed, with other values each time."""
    rank, ranks, count = dist.get_rank(), dist.get_world_size(), (1 << 21) + 9
    values = torch.zeros(count, dtype=torch.bfloat16, device=device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        dist.all_reduce(values)  # connects the ranks
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        dist.all_reduce(values)
    digest = Digest()
    for turn in range(REPLAYS):
        sent = [values_of(r, count, device, turn=turn) for r in range(ranks)]
        values.copy_(sent[rank])
        graph.replay()
        torch.cuda.synchronize()
        if ranks == 2:
            require_same(f"graph-sum, replay {turn}", values, sums_of(sent, torch.bfloat16))
        digest.hash.update(struct.pack("<q", values.view(torch.int16).long().sum().item()))
    say("graph-sum", f"{REPLAYS} replays sha256 {digest.text()}")


def run_graph(device):
    """An all-gather that is captured once and replayed, with other values each time."""
    rank, ranks, count = dist.get_rank(), dist.get_world_size(), 1 << 21
    sent = torch.zeros(count, dtype=torch.bfloat16, device=device)
    got = torch.zeros(ranks * count, dtype=torch.bfloat16, device=device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        dist.all_gather_into_tensor(got, sent)  # connects the ranks, which a capture cannot
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        dist.all_gather_into_tensor(got, sent)
    digest = Digest()
    for turn in range(REPLAYS):
        expected = torch.cat([values_of(r, count, device, turn=turn) for r in range(ranks)])
        sent.copy_(expected[rank * count:(rank + 1) * count])
        got.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        require_same(f"graph, replay {turn}", got, expected)
        digest.hash.update(struct.pack("<q", got.view(torch.int16).long().sum().item()))
    say("graph", f"{REPLAYS} replays sha256 {digest.text()}")


# ---- All of it ------------------------------------------------------------------------------------------------------

PARTS = {
    "fsdp-bf16": run_fsdp_bf16,
    "fsdp-fp32": run_fsdp_fp32,
    "ddp-fp32": run_ddp_fp32,
    "ddp-bf16": run_ddp_bf16,
    "all-to-all": run_all_to_all,
    "all-to-all-uneven": run_all_to_all_uneven,
    "all-reduce": run_all_reduce,
    "all-reduce-full": run_all_reduce_full,
    "graph": run_graph,
    "graph-sum": run_graph_sum,
}


def main():
    named = [name for name in sys.argv[1:] if name != "--direct"]
    chosen = named or [name for name in PARTS if not DIRECT or name.startswith(("fsdp", "ddp"))]
    unknown = [name for name in chosen if name not in PARTS]
    if unknown:
        sys.exit(f"no part '{unknown[0]}': there are {', '.join(PARTS)}")
    if "RANK" not in os.environ:
        sys.exit("run by torchrun: torchrun --nproc-per-node=2 collective_pytorch.py")
    local = int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))
    if torch.cuda.device_count() <= local:
        print(f"skipped: rank {local} has no GPU")
        sys.exit(77)
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("nccl", device_id=device)
    for name in chosen:
        PARTS[name](device)
    dist.barrier()
    if DIRECT:
        strait.torch.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
