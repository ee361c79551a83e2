#!/usr/bin/env python3
"""Checkpoints of FSDP2 on GPUs by torch.distributed.checkpoint: Strait's writer and reader beside its own, in turn.

  torchrun --nproc-per-node=2 tests/gpu/checkpoint_fsdp.py FOLDER [ROUNDS]

A Llama of 0.4 billion parameters, F32, with AdamW. Prints GB/s of saves until all is on the disk and of loads, for how
long async_save() holds the training up, and how long steps take beside it. All that is loaded is compared bit for bit.
Needs the package strait (PYTHONPATH), libstrait-codec, libstrait-checkpoint and their plugins (LD_LIBRARY_PATH). Exit
status: 1 something is wrong, 77 no GPU.
"""

import os
import shutil
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from strait.torch.checkpoint import Reader, Stager, Writer

WIDTH, LAYERS, ROWS = 2048, 8, 4096


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.mix = nn.Linear(WIDTH, 4 * WIDTH, bias=False)

    def forward(self, x):
        x = self.norm(x)
        return x + self.down(torch.nn.functional.silu(self.up(x)) * self.mix(x))


def made(device):
    torch.manual_seed(7)
    model = nn.Sequential(*(Layer() for _ in range(LAYERS))).to(device)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def step(model, optimizer, device, number):
    torch.manual_seed(number)
    loss = model(torch.randn(ROWS, WIDTH, device=device)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def state_of(model, optimizer):
    values, moments = get_state_dict(model, optimizer)
    return {"model": values, "optimizer": moments}


def tensors_of(state):
    for value in state.values() if isinstance(state, dict) else state:
        if isinstance(value, torch.Tensor):
            yield value.to_local() if hasattr(value, "to_local") else value
        elif isinstance(value, (dict, list, tuple)):
            yield from tensors_of(value)


def timed(work):
    torch.cuda.synchronize()
    dist.barrier()
    begin = time.perf_counter()
    made = work()
    torch.cuda.synchronize()
    dist.barrier()
    return time.perf_counter() - begin, made


def wrong(state, kept):
    found = list(tensors_of(state))
    assert len(found) == len(kept)
    return sum(not torch.equal(a.cpu(), b) for a, b in zip(found, kept))


def main():
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        sys.exit(77)
    folder, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    first = dist.get_rank() == 0
    model, optimizer = made(device)
    for number in range(3):
        step(model, optimizer, device, number)
    state = state_of(model, optimizer)
    kept = [tensor.detach().cpu().clone() for tensor in tensors_of(state)]
    size = torch.tensor([sum(tensor.nbytes for tensor in kept)], device=device)
    dist.all_reduce(size)
    size, failed = size.item(), 0
    ways = {
        "dcp": (dcp.FileSystemWriter, dcp.FileSystemReader),
        "strait raw": (lambda path: Writer(path, raw=True), Reader),
        "strait": (Writer, Reader),
    }
    saves, loads = {name: [] for name in ways}, {name: [] for name in ways}
    for round_number in range(rounds):
        for name, (writer, reader) in ways.items():
            path = f"{folder}/{name.replace(' ', '-')}-{round_number}"
            saves[name].append(timed(lambda: dcp.save(state, storage_writer=writer(path)))[0])
            if first and round_number == rounds - 1:
                stored = sum(os.path.getsize(f"{path}/{file}") for file in os.listdir(path))
                print(f"{name}: {size / stored:.3f} times smaller", flush=True)
            for tensor in tensors_of(state):
                tensor.zero_()
            loads[name].append(timed(lambda: dcp.load(state, storage_reader=reader(path)))[0])
            failed += wrong(state, kept)
            dist.barrier()
            if first:
                shutil.rmtree(path)
            dist.barrier()
    if first:
        print(f"{size / 1e9:.2f} GB of {dist.get_world_size()} ranks; GB/s, medians of {rounds} (least, most)")
        for name in ways:
            rates = [[size / 1e9 / s for s in times[name]] for times in (saves, loads)]
            print(f"{name:<12}" + "".join(
                f" {what} {statistics.median(r):6.2f} ({min(r):.2f}, {max(r):.2f})" for what, r in zip(("save", "load"), rates)
            ))  # fmt: skip
        sys.stdout.flush()
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    alone = [timed(lambda n=n: step(model, optimizer, device, n))[0] for n in range(30)]
    stager, beside, held = Stager(), [], []
    for number in range(3):
        path = f"{folder}/async-{number}"
        now = state_of(model, optimizer)
        copied = [tensor.detach().cpu().clone() for tensor in tensors_of(now)]
        seconds, future = timed(lambda: dcp.async_save(now, storage_writer=Writer(path), async_stager=stager))
        held.append(seconds)
        busy = torch.ones(1, device=device)
        while busy.item() > 0:  # as long as a rank has not ended its save
            beside.append(timed(lambda n=number: step(model, optimizer, device, n))[0])
            busy.fill_(not future.done())
            dist.all_reduce(busy)
        future.result()
        dist.barrier()
        dcp.load(now, storage_reader=Reader(path))
        failed += wrong(now, copied)
    stager.close()
    wrongs = torch.tensor([failed], device=device)
    dist.all_reduce(wrongs)
    if first:
        print(
            f"async_save holds up {statistics.median(held) * 1e3:.0f} ms ({len(beside)} steps beside it take"
            f" {statistics.median(beside) * 1e3:.1f} ms, alone {statistics.median(alone) * 1e3:.1f}:"
            f" {statistics.median(beside) / statistics.median(alone):.3f})"
        )
        print("FAIL" if wrongs.item() else "PASS", f"{wrongs.item()} tensors are wrong")
    dist.destroy_process_group()
    sys.exit(1 if wrongs.item() else 0)


if __name__ == "__main__":
    main()
