#!/usr/bin/env python3
"""Trains a small transformer with a layer of experts: torchrun --nproc-per-node=4 train.py

On CPUs through memory that the processes share, with --device cuda on as many GPUs as ranks. Afterwards rank 0 trains
the same in one process (reference.py) and compares: losses and parameters are equal bit for bit. Exit status 1: not so.
"""

from __future__ import annotations

import argparse
import os
import sys

import reference
import strait.torch.ep
import torch
import torch.distributed as dist
from layer import EXPERTS, HIDDEN, TOKENS_MAX, TOPK, Model, batch


def sum_in_order(gradients):
    """Of all ranks, in their order: what an all-reduce would not promise."""
    total = gradients[0].float()
    for gradient in gradients[1:]:
        total = total + gradient.float()
    return total.to(gradients[0].dtype)


def optimizer_of(parameters):
    return torch.optim.Adam(parameters, lr=3e-3, foreach=False)


def gather(tensor, ranks):
    gathered = [torch.empty_like(tensor) for _ in range(ranks)]
    dist.all_gather(gathered, tensor.contiguous())
    return gathered


def train(model, buffer, rank, ranks, steps, device):
    optimizer = optimizer_of([*model.dense.parameters(), *model.experts.parameters()])
    history = []
    for step in range(steps):
        tokens, targets = batch(step, rank, device)
        loss = model(tokens, targets, buffer)
        (loss / ranks).backward()
        for parameter in model.dense.parameters():
            parameter.grad = sum_in_order(gather(parameter.grad, ranks))
        optimizer.step()
        optimizer.zero_grad()
        history.append([float(one) for one in gather(loss.detach(), ranks)])
    return history


def same(model, experts, history, arguments, ranks, device, dtype):
    """Whether the reference has the same bits; said on stdout."""
    expected, denses, expected_experts = reference.train(
        ranks, arguments.steps, device, dtype, optimizer_of, sum_in_order
    )
    good = True
    for step, (ours, theirs) in enumerate(zip(history, expected)):
        if ours != theirs:
            print(f"step {step}: losses {ours}, the reference's {theirs}")
            good = False
            break
    for (name, ours), theirs in zip(model.dense.named_parameters(), denses[0].parameters()):
        if not torch.equal(ours, theirs):
            print(f"{name} differs from the reference")
            good = False
    for rank, theirs in enumerate(expected_experts):
        for ours, parameter in zip(experts[rank], theirs.parameters()):
            if not torch.equal(ours.to(device), parameter):
                print(f"experts of rank {rank} differ from the reference")
                good = False
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--coding", choices=["auto", "raw", "coded"], default="auto")
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dtype = getattr(torch, arguments.dtype)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # as many in the reference, or its sums have another order
    dist.init_process_group("nccl" if arguments.device == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device()) if arguments.device == "cuda" else torch.device("cpu")

    model = Model(rank, ranks).to(device, dtype)
    with strait.torch.ep.Buffer(
        experts=EXPERTS, hidden=HIDDEN, tokens_max=TOKENS_MAX, topk=TOPK, dtype=dtype, coding=arguments.coding
    ) as buffer:
        history = train(model, buffer, rank, ranks, arguments.steps, device)
        info = buffer.info
    experts = list(zip(*(gather(parameter.data, ranks) for parameter in model.experts.parameters())))
    good = True
    if rank == 0:
        print(
            f"{ranks} ranks, {info.medium}: loss {history[0][0]:.4f}, after {len(history)} steps {history[-1][0]:.4f}"
        )
        good = same(model, experts, history, arguments, ranks, device, dtype)
        print("losses and parameters are those of one process, bit for bit" if good else "NOT those of one process")
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
