#!/usr/bin/env python3
"""strait.torch on two GPUs: FSDP2 and DDP with and without libstrait-coll, bit for bit, and errors.

  torchrun --nproc-per-node=2 tests/gpu/fsdp2.py [CHECK ...]
  HOSTS=1 torchrun ...                  the same with each rank on a host of its own, as NCCL is told
  python3 tests/gpu/fsdp2.py --kill     a rank is killed in mid-step: the other has to raise, within KILL_SECONDS

Prints a line for each check: PASS or FAIL, its name, and why. Everything is compressed unless STRAIT_COLL says
otherwise. Needs the package strait (PYTHONPATH), libstrait-codec and libstrait-coll with its plugin (LD_LIBRARY_PATH,
or STRAIT_LIBRARY and STRAIT_COLLECTIVE_LIBRARY). Exit status: 1 a check failed, 77 no two GPUs.
"""

import contextlib
import datetime
import faulthandler
import os
import signal
import socket
import subprocess
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products
os.environ.setdefault("STRAIT_COLL", "compress")
if os.environ.get("HOSTS") == "1":  # each rank on one of its own, as NCCL and libstrait-coll are told
    os.environ["NCCL_HOSTID"] = "host" + os.environ.get("RANK", "0")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, bf16_compress_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import strait.torch
from strait import CollectiveError, _nccl
from strait.torch import Communicator, communicator_of, ddp_hook, fsdp2

STEPS = 10
SECONDS_MAX = 300
KILL_SECONDS = 15
WIDTH, LAYERS, ROWS = 1024, 3, 64


class Wrong(Exception):
    """A check is not true."""


def demand(condition, why):
    if not condition:
        raise Wrong(why)


def bits(tensor):
    return tensor.detach().contiguous().flatten().view(torch.uint8)


# ---- Models ---------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Two layers, of sizes that are multiples of the number of ranks or not."""

    def __init__(self, width, inner):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Frozen(Block):
    """With a parameter of another type in the same group, which is not trained."""

    def __init__(self, width, inner):
        super().__init__(width, inner)
        self.scale = nn.Parameter(torch.ones(width), requires_grad=False)

    def forward(self, x):
        return super().forward(x * self.scale.to(x.dtype))


def make(device, dtype, width=0, inner=0, block=Block):
    torch.manual_seed(7)  # the same on all ranks
    width, inner = width or WIDTH, inner or 4 * WIDTH
    model = nn.Sequential(*(block(width, inner) for _ in range(LAYERS))).to(device)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    return model


def shard(model, mesh, policy=None):
    for layer in model:
        fully_shard(layer, mesh=mesh, mp_policy=policy or MixedPrecisionPolicy())
    return fully_shard(model, mesh=mesh, mp_policy=policy or MixedPrecisionPolicy())


def train(model, device, dtype, width=0, steps=STEPS, first=0):
    """Losses and what the parameters of this rank became."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    random = torch.Generator(device=device).manual_seed(100 * first + dist.get_rank())
    losses = []
    for _ in range(steps):
        x = torch.randn(ROWS, width or WIDTH, generator=random, device=device).to(dtype)
        loss = (model(x) - x.flip(0)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    local = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
    return losses, [p.detach().clone() for p in local]


def demand_same(got, expected):
    demand(got[0] == expected[0], f"losses differ: {got[0]} and {expected[0]}")
    demand(got[0][0] != got[0][-1], "the loss has not changed")
    for i, (a, b) in enumerate(zip(got[1], expected[1])):
        demand(torch.equal(bits(a), bits(b)), f"parameter {i} differs")


def compressed(operation, kind):
    """How many calls of this process were compressed: of its report."""
    for line in _nccl.report(None).splitlines():
        words = line.split()
        if words[:2] == [operation, kind]:
            return int(words[7])
    return 0


@contextlib.contextmanager
def counted(*rows):
    """What is done within is compressed, if all can be."""
    before = [compressed(*row) for row in rows]
    yield
    for row, count in zip(rows, before):
        if os.environ["STRAIT_COLL"] == "compress":
            demand(compressed(*row) > count, f"no {row[0]} of {row[1]} was compressed:\n{_nccl.report(None)}")


# ---- FSDP2 ----------------------------------------------------------------------------------------------------------


def compare_fsdp(here, dtype, policy=None, change=None, arena=None, **shape):
    """The same model twice: by torch alone, and through libstrait-coll."""
    results = []
    for ours in (False, True):
        model = shard(make(here.device, dtype, **shape), here.mesh, policy)
        for module in model.modules():
            if isinstance(module, FSDPModule) and (change or here.change):
                (change or here.change)(module)
        if ours:
            demand(fsdp2.install(model, arena) == LAYERS + 1, "install() has not found all modules")
        input_dtype = policy.param_dtype if policy and policy.param_dtype else dtype
        results.append(train(model, here.device, input_dtype, shape.get("width", 0)))
    demand_same(results[1], results[0])


def check_fsdp_reduce_fp32(here):
    with counted(("all_gather", "bf16"), ("reduce_scatter", "fp32")):
        compare_fsdp(here, torch.bfloat16, MixedPrecisionPolicy(reduce_dtype=torch.float32))


def check_fsdp_reduce_bf16(here):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    with counted(("all_gather", "bf16"), ("reduce_scatter", "bf16")):
        compare_fsdp(here, torch.float32, policy)


def check_fsdp_fp32(here):
    """FP32 that uses all its bits: it does not fit, and goes uncompressed."""
    compare_fsdp(here, torch.float32)


def check_fsdp_uneven(here):
    """Shards that are padded."""
    with counted(("all_gather", "bf16"), ("reduce_scatter", "fp32")):
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        compare_fsdp(here, torch.bfloat16, policy, width=WIDTH - 1, inner=4 * WIDTH - 1)


def check_fsdp_packed(here):
    """Parameters of two types, which FSDP2 gathers as uint8."""
    os_bytes = os.environ.get("STRAIT_COLL_BYTES", "auto")
    before = [line for line in _nccl.report(None).splitlines() if line.split()[:2] == ["all_gather", "uint8"]]
    compare_fsdp(here, torch.bfloat16, MixedPrecisionPolicy(reduce_dtype=torch.float32), block=Frozen)
    lines = [line for line in _nccl.report(None).splitlines() if line.split()[:2] == ["all_gather", "uint8"]]
    demand(lines and lines != before, f"nothing was gathered as uint8 (STRAIT_COLL_BYTES={os_bytes})")
    if os.environ["STRAIT_COLL"] == "compress" and os_bytes != "raw":
        demand(compressed("all_gather", "uint8") > 0, f"no uint8 was compressed: {lines[0]}")


def check_fsdp_async(here):
    """Work that is waited for."""
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    compare_fsdp(here, torch.bfloat16, policy, change=lambda module: module._set_unshard_async_op(True))


def check_fsdp_factor(here):
    """A factor of one's own, which is torch's own reduction."""
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    compare_fsdp(here, torch.bfloat16, policy, change=lambda module: module.set_gradient_divide_factor(3.0))


def check_fsdp_sum(here):
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    compare_fsdp(here, torch.bfloat16, policy, change=lambda module: module.set_force_sum_reduction_for_comms(True))


def check_fsdp_registered(here):
    """Buffers of ncclMemAlloc that NCCL knows of."""
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    compare_fsdp(here, torch.bfloat16, policy, arena=fsdp2.Arena(registered=True))
    demand(communicator_of(here.group).is_registered(), "nothing was registered")


def check_fsdp_switched(here):
    """With and without in turn, on one model."""
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    models = [shard(make(here.device, torch.bfloat16), here.mesh, policy) for _ in range(2)]
    for model in models:
        for module in model.modules():
            if isinstance(module, FSDPModule) and here.change:
                here.change(module)
    for turn in range(4):
        (fsdp2.install if turn % 2 == 0 else fsdp2.remove)(models[1])
        expected, got = (train(model, here.device, torch.bfloat16, steps=3, first=turn) for model in models)
        demand_same(got, expected)


def check_fsdp_offload(here):
    """Parameters on the CPU, which are gathered on the GPU."""
    results = []
    for ours in (False, True):
        model = make(torch.device("cpu"), torch.bfloat16)
        for module in [*model, model]:
            fully_shard(module, mesh=here.mesh, offload_policy=CPUOffloadPolicy())
        if ours:
            fsdp2.install(model)
        results.append(train(model, here.device, torch.bfloat16))
    demand_same(results[1], results[0])


def check_fsdp_replicas(here):
    """HSDP of one shard: nothing is gathered; reduced are replicas, by torch."""
    mesh = init_device_mesh(here.device.type, (2, 1), mesh_dim_names=("replicate", "shard"))
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    results = []
    for ours in (False, True):
        model = shard(make(here.device, torch.bfloat16), mesh, policy)
        if ours:
            fsdp2.install(model)
        results.append(train(model, here.device, torch.bfloat16))
    demand_same(results[1], results[0])


# ---- DDP ------------------------------------------------------------------------------------------------------------


def compare_ddp(here, dtype, expected_hook, hook):
    results = []
    for chosen in (expected_hook, hook):
        device_ids = [here.device.index] if here.device.type == "cuda" else None
        model = DistributedDataParallel(make(here.device, dtype), device_ids=device_ids)
        if chosen is not None:
            model.register_comm_hook(None, chosen)
        results.append(train(model, here.device, dtype))
    demand_same(results[1], results[0])


def check_ddp_bf16(here):
    with counted(("all_reduce", "bf16")):
        compare_ddp(here, torch.bfloat16, None, ddp_hook)


def check_ddp_fp32(here):
    compare_ddp(here, torch.float32, None, ddp_hook)


def check_ddp_rounded(here):
    with counted(("all_reduce", "bf16")):
        compare_ddp(here, torch.float32, bf16_compress_hook, bf16_compress_wrapper(ddp_hook))


# ---- Single calls ---------------------------------------------------------------------------------------------------


def check_types(here):
    """Every type arrives as it was, in place and not."""
    communicator = communicator_of(here.group)
    rank, ranks, device = dist.get_rank(here.group), dist.get_world_size(here.group), here.device
    dtypes = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.uint8, torch.int64, torch.bool]
    for dtype in [*dtypes, torch.float8_e4m3fn, torch.complex64]:
        for count in (1, 1000, 70000):
            sent = [
                torch.randint(0, 2, (count,), generator=torch.Generator().manual_seed(r)).to(dtype).to(device)
                for r in range(ranks)
            ]
            whole = torch.cat([bits(values) for values in sent]).view(dtype)
            got = torch.empty_like(whole)
            communicator.all_gather(got, sent[rank])
            demand(torch.equal(bits(got), bits(whole)), f"all_gather of {count} {dtype}")
            got.view(torch.uint8).zero_()
            part = got[rank * count : (rank + 1) * count]
            part.copy_(sent[rank])
            communicator.all_gather(got, part)
            demand(torch.equal(bits(got), bits(whole)), f"all_gather of {count} {dtype} in place")


def check_reductions(here):
    """Those that are torch's own."""
    rank, ranks, scatter = dist.get_rank(here.group), dist.get_world_size(here.group), fsdp2.ReduceScatter()
    for dtype, op in ((torch.int32, dist.ReduceOp.SUM), (torch.float32, dist.ReduceOp.MAX)):
        sent = torch.arange(8 * ranks, device=here.device).to(dtype)
        got = torch.empty(8, dtype=dtype, device=here.device)
        scatter(got, sent * (1 - 2 * rank), here.group, op)
        own = sent[rank * 8 : (rank + 1) * 8]
        expected = own * sum(1 - 2 * r for r in range(ranks)) if op == dist.ReduceOp.SUM else own
        demand(torch.equal(got, expected), f"{op} of {dtype}")


def check_errors(here):
    communicator = communicator_of(here.group)
    ranks, device = dist.get_world_size(here.group), here.device
    values = torch.zeros(8, dtype=torch.bfloat16, device=device)
    other = torch.device("cpu") if device.type == "cuda" else torch.device("meta")

    def refuse(kind, text, call):
        try:
            call()
        except kind as failure:
            demand(text in str(failure), f"'{text}' is not in: {failure}")
        else:
            raise Wrong(f"not refused: {text}")

    outside = values.to(other)
    refuse(ValueError, f"a tensor is on {other}", lambda: communicator.all_gather(outside.repeat(ranks), outside))
    refuse(ValueError, f"a tensor is on {other}", lambda: communicator.all_reduce(outside))
    refuse(ValueError, "values for", lambda: communicator.all_gather(values, values))
    refuse(ValueError, "values for", lambda: communicator.reduce_scatter(values, values))
    refuse(ValueError, "types differ", lambda: communicator.all_gather(values.float().repeat(ranks), values))
    refuse(ValueError, "not contiguous", lambda: communicator.all_gather(values, values[::2][:4]))
    refuse(ValueError, "only sums and averages", lambda: communicator.all_reduce(values, dist.ReduceOp.MAX))
    refuse(ValueError, "only sums and averages", lambda: communicator.all_reduce(values.long()))
    refuse(ValueError, "fully_shard was applied to no module", lambda: fsdp2.install(nn.Linear(2, 2)))


@contextlib.contextmanager
def variable(name, value):
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def check_missing_library(here):
    """One rank has none: both say so, and both go on."""
    rank = dist.get_rank(here.group)
    with variable("STRAIT_COLLECTIVE_LIBRARY", "/no/libstrait-coll.so.0"):
        if rank == 1:
            _nccl.library.cache_clear()
        try:
            Communicator(here.group)
        except CollectiveError as failure:
            text = str(failure)
            wanted = ("rank 1: no usable libstrait-coll.so", "STRAIT_COLLECTIVE_LIBRARY", "/no/libstrait-coll.so.0")
            demand(all(part in text for part in wanted), text)
            demand("rank 0" not in text, text)
        else:
            raise Wrong("not refused")
    _nccl.library.cache_clear()


def check_missing_nccl(here):
    program = "from strait import _nccl\ntry: _nccl.nccl()\nexcept _nccl.CollectiveError as e: print('refused:', e)"
    with variable("STRAIT_COLL_NCCL", "/no/libnccl.so.2"):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    demand("refused: libstrait-coll finds no NCCL" in done.stdout, done.stdout + done.stderr)


def check_close(here):
    """It ends, is made anew by what comes next, and its memory is free again."""
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    first = communicator_of(here.group)
    strait.torch.close()
    try:
        first.all_reduce(torch.zeros(8, dtype=torch.bfloat16, device=here.device))
    except CollectiveError as failure:
        demand("closed" in str(failure), str(failure))
    else:
        raise Wrong("a closed communicator is used")
    first.close()  # does nothing
    compare_fsdp(here, torch.bfloat16, policy)
    demand(communicator_of(here.group) is not first, "the closed communicator is still there")
    demand(communicator_of() is communicator_of(here.group), "the group of all ranks has two communicators")
    if here.device.type != "cuda":
        return
    strait.torch.close()
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    for _ in range(3):
        communicator = communicator_of(here.group)
        communicator.all_reduce(torch.zeros(1 << 24, dtype=torch.bfloat16, device=here.device))
        communicator.close()
    torch.cuda.empty_cache()
    lost = before - torch.cuda.mem_get_info()[0]
    demand(lost < 64 << 20, f"{lost >> 20} MiB of GPU memory are lost")


# ---- A rank that is killed ------------------------------------------------------------------------------------------


def step_until_killed():
    """A rank of --kill: the second one kills itself when the first may wait for it."""
    rank = int(os.environ["RANK"])
    here = begin()
    model = shard(make(here.device, torch.bfloat16), here.mesh, MixedPrecisionPolicy(reduce_dtype=torch.float32))
    fsdp2.install(model)
    train(model, here.device, torch.bfloat16)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            train(model, here.device, torch.bfloat16, steps=1)
    except CollectiveError as failure:
        print(f"rank 0: CollectiveError: {failure}", flush=True)
        os._exit(0)  # torch's own communicators may wait


def kill():
    """Returns the exit status."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    names = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--killed"],
            env={**os.environ, **names, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    try:
        killed = ranks[1].wait(timeout=120)
        since = time.perf_counter()
        status = ranks[0].wait(timeout=KILL_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"FAIL kill: {'rank 1 has not come to its end' if ranks[1].poll() is None else 'rank 0 waits'}")
        return 1
    finally:
        for rank in ranks:
            rank.kill()
    good = status == 0 and killed == -signal.SIGKILL
    print(f"{'PASS' if good else 'FAIL'} kill ({time.perf_counter() - since:.1f} s) {killed}, {status}")
    return 0 if good else 1


# ---- All of it ------------------------------------------------------------------------------------------------------

CHECKS = {
    name.removeprefix("check_"): function for name, function in list(globals().items()) if name.startswith("check_")
}
#: Those that need a GPU.
GPU_ONLY = {"fsdp_registered", "fsdp_factor", "fsdp_offload"}


class Here:
    """Where the checks run. change: what is done to every FSDPModule, in any case."""

    def __init__(self, device, change=None):
        self.device, self.change = device, change
        self.mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        self.group = self.mesh.get_group()


def run(here, names):
    """Prints the lines, on rank 0; returns how many checks failed."""
    failed = 0
    for name in names:
        begin, why = time.perf_counter(), ""
        try:
            CHECKS[name](here)
        except Exception as failure:
            why = f"{'' if isinstance(failure, Wrong) else type(failure).__name__ + ': '}{failure}"
        told = [None] * dist.get_world_size()
        dist.all_gather_object(told, why)
        whys = [f"rank {rank}: {text}" for rank, text in enumerate(told) if text]
        failed += bool(whys)
        seconds = time.perf_counter() - begin
        if dist.get_rank() == 0:
            print(f"{'FAIL' if whys else 'PASS'} {name} ({seconds:.1f} s) {'; '.join(whys)}", flush=True)
    return failed


def begin():
    """Of a rank."""
    faulthandler.dump_traceback_later(SECONDS_MAX, exit=True)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("nccl", device_id=device, timeout=datetime.timedelta(seconds=90))
    return Here(device)


def main():
    if sys.argv[1:] == ["--killed"]:
        return step_until_killed()
    if torch.cuda.device_count() < 2:
        print("skipped: needs two GPUs")
        sys.exit(77)
    if sys.argv[1:] == ["--kill"]:
        sys.exit(kill())
    names = sys.argv[1:] or list(CHECKS)
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        sys.exit(f"no check '{unknown[0]}': there are {', '.join(CHECKS)}")
    if os.environ.get("WORLD_SIZE") != "2":
        sys.exit("run by torchrun: torchrun --nproc-per-node=2 fsdp2.py")
    failed = run(begin(), names)
    if dist.get_rank() == 0:
        print(_nccl.report(None))
        print(f"{len(names) - failed} passed, {failed} failed")
    strait.torch.close()
    dist.destroy_process_group()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
