"""The same training in one process: the ranks' parts one after another, and between them the exchange as strait/ep.h
documents it. Shares nothing with the library."""

from __future__ import annotations

import torch
from layer import EXPERTS, TOPK, Dense, Experts, batch


class Plan:
    """Which tokens of which rank go where: lists[s][d], tokens of rank s that an expert of rank d wants, ascending."""

    def __init__(self, topks, ranks):
        self.ranks, self.topks, local = ranks, topks, EXPERTS // ranks
        self.tokens = [len(topk) for topk in topks]
        self.lists = [[((topk // local) == d).any(-1).nonzero().view(-1) for d in range(ranks)] for topk in topks]
        self.numbers = [self.gather(d, topks) - d * local for d in range(ranks)]
        for d, numbers in enumerate(self.numbers):
            numbers[(numbers < 0) | (numbers >= local)] = -1
            assert len(numbers) == sum(len(self.lists[s][d]) for s in range(ranks))

    def gather(self, d, tensors):
        """Rows for rank d: by source rank, then by token."""
        return torch.cat([tensors[s][self.lists[s][d]] for s in range(self.ranks)])

    def sum(self, rows, s):
        """Rows back at rank s: in the order of ranks, in FP32 from the first on, rounded once."""
        out = torch.zeros(self.tokens[s], rows[0].shape[-1], device=rows[0].device)
        begun = torch.zeros(self.tokens[s], 1, dtype=torch.bool, device=rows[0].device)
        for d in range(self.ranks):
            at = self.lists[s][d]
            begin = sum(len(self.lists[before][d]) for before in range(s))
            came = rows[d][begin : begin + len(at)].float()
            out[at] = torch.where(begun[at], out[at] + came, came)
            begun[at] = True
        return out.to(rows[0].dtype)

    def weights_home(self, weights, s):
        """Gradients of weights: one rank has each."""
        local = EXPERTS // self.ranks
        out = torch.zeros(self.tokens[s], TOPK, device=weights[0].device)
        for d in range(self.ranks):
            at = self.lists[s][d]
            begin = sum(len(self.lists[before][d]) for before in range(s))
            here = (self.topks[s][at] // local) == d
            out[at] = torch.where(here, weights[d][begin : begin + len(at)], out[at])
        return out


class Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, plan, *given):
        ctx.plan = plan
        xs, weights = given[: plan.ranks], given[plan.ranks :]
        made = [torch.where(plan.numbers[d] >= 0, plan.gather(d, weights), 0) for d in range(plan.ranks)]
        return (*(plan.gather(d, xs) for d in range(plan.ranks)), *made)

    @staticmethod
    def backward(ctx, *grads):
        plan = ctx.plan
        rows, weights = grads[: plan.ranks], grads[plan.ranks :]
        return (
            None,
            *(plan.sum(rows, s) for s in range(plan.ranks)),
            *(plan.weights_home(weights, s) for s in range(plan.ranks)),
        )


class Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, plan, *rows):
        ctx.plan = plan
        return tuple(plan.sum(rows, s) for s in range(plan.ranks))

    @staticmethod
    def backward(ctx, *grads):
        return (None, *(ctx.plan.gather(d, grads) for d in range(ctx.plan.ranks)))


def losses(denses, experts, step, device):
    ranks = len(denses)
    batches = [batch(step, rank, device) for rank in range(ranks)]
    xs, residuals = zip(*(dense.before(tokens) for dense, (tokens, _) in zip(denses, batches)))
    topks, weights = zip(*(dense.router(x) for dense, x in zip(denses, xs)))
    plan = Plan(topks, ranks)
    received = Dispatch.apply(plan, *xs, *weights)
    made = [experts[d](received[d], plan.numbers[d], received[ranks + d]) for d in range(ranks)]
    sums = Combine.apply(plan, *made)
    return [denses[s].after(residuals[s], sums[s], batches[s][1]) for s in range(ranks)]


def train(ranks, steps, device, dtype, optimizer_of, sum_gradients):
    """Losses of each step, by rank, and the parts of all ranks."""
    denses = [Dense().to(device, dtype) for _ in range(ranks)]
    experts = [Experts(rank, ranks).to(device, dtype) for rank in range(ranks)]
    optimizers = [optimizer_of([*denses[rank].parameters(), *experts[rank].parameters()]) for rank in range(ranks)]
    history = []
    for step in range(steps):
        found = losses(denses, experts, step, device)
        (torch.stack(found) / ranks).sum().backward()
        history.append([float(loss.detach()) for loss in found])
        for parameters in zip(*(dense.parameters() for dense in denses)):
            summed = sum_gradients([parameter.grad for parameter in parameters])
            for parameter in parameters:
                parameter.grad = summed.clone()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return history, denses, experts
