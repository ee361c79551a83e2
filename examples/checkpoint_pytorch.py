#!/usr/bin/env python3
"""A training that goes on where it was: FSDP2, AdamW and torch.distributed.checkpoint, with Strait as the storage.

  torchrun --nproc-per-node=2 checkpoint_pytorch.py FOLDER [--steps 40] [--every 10] [--keep 2]

Trains a tiny model on numbers that follow from the step, on GPUs or, without, on processors. Every so many steps the
state is copied, and saved while the training goes on. Started again, with any number of ranks, it goes on after the
newest checkpoint of FOLDER: kill it at any moment and see. Rank 0 prints the losses, and what each checkpoint holds.
"""

import argparse
import os
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import strait.checkpoint
from strait.torch.checkpoint import Reader, Stager, Writer

WIDTH, LAYERS, BATCH = 512, 4, 32


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def make(device):
    torch.manual_seed(1)  # the same on all ranks
    model = nn.Sequential(*(Layer() for _ in range(LAYERS))).to(device)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def state_of(model, optimizer, step):
    parameters, moments = get_state_dict(model, optimizer)
    return {"model": parameters, "optimizer": moments, "step": step}


def resume(folder, model, optimizer):
    """The step that the newest whole checkpoint was saved after; 0 if there is none."""
    try:
        path = strait.checkpoint.newest(folder)
    except strait.InvalidError:
        return 0
    state = state_of(model, optimizer, 0)
    dcp.load(state, storage_reader=Reader(path))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return state["step"]


def train_step(model, optimizer, device, step):
    random = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    x = torch.randn(BATCH, WIDTH, generator=random).to(device)
    loss = (model(x) - x.flip(-1)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def say(text):
    if dist.get_rank() == 0:
        print(text, flush=True)


def finish(saving):
    """Waits for a save that is under way; its error, whichever rank met it, is raised on all."""
    if saving is None:
        return
    future, path = saving
    future.result()
    if dist.get_rank() == 0:
        with strait.checkpoint.open(path) as found:
            ratio = found.raw_bytes / found.stored_bytes
            print(f"{path}: {found.raw_bytes} bytes in {found.stored_bytes}, {ratio:.2f} times smaller", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--keep", type=int, default=2)
    given = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("run by torchrun: torchrun --nproc-per-node=2 checkpoint_pytorch.py FOLDER")
    warnings.filterwarnings("ignore", category=FutureWarning)  # torch's, about itself
    local = int(os.environ["LOCAL_RANK"])
    cuda = torch.cuda.device_count() > local
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    os.makedirs(given.folder, exist_ok=True)
    model, optimizer = make(device)
    first = resume(given.folder, model, optimizer)
    say(f"{dist.get_world_size()} ranks begin after step {first}")
    stager, saving = Stager(), None
    group = dist.new_group(backend="gloo")  # of saves: the training's collectives go on beside theirs
    for step in range(first + 1, given.steps + 1):
        loss = train_step(model, optimizer, device, step)
        if step % given.every == 0 or step == given.steps:
            say(f"step {step}: loss {loss:.6f}")
            finish(saving)
            path = os.path.join(given.folder, f"step-{step:06}")
            writer = Writer(path, keep=given.keep)
            state = state_of(model, optimizer, step)
            saving = dcp.async_save(state, storage_writer=writer, async_stager=stager, process_group=group), path
    finish(saving)
    stager.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
