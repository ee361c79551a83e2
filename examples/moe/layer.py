"""A small transformer with a layer of experts, of which each rank has its own.

The exchange between ranks is an argument of the model, so that the reference (reference.py) runs the same code.
"""

from __future__ import annotations

import math

import strait.torch.ep
import torch
from torch import nn

VOCABULARY, HIDDEN, HEADS, INNER, EXPERTS, TOPK = 64, 64, 4, 128, 8, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward, self.outward = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x):  # [sequences][length][hidden]
        count, length, _ = x.shape
        q, k, v = self.inward(x).view(count, length, 3, HEADS, HIDDEN // HEADS).permute(2, 0, 3, 1, 4)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(HIDDEN // HEADS)
        y = torch.softmax(scores.masked_fill(later, float("-inf")), -1) @ v
        return self.outward(y.transpose(1, 2).reshape(count, length, HIDDEN))


class Router(nn.Module):
    """The experts of each token, and their weights."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(HIDDEN, EXPERTS, bias=False)

    def forward(self, x):  # [tokens][hidden]
        best, topk = torch.topk(self.scores(x), TOPK, sorted=True)
        return topk, torch.softmax(best.float(), -1)


class Experts(nn.Module):
    """Those of one rank. A row's result is the sum over its experts here, each times its weight."""

    def __init__(self, rank, ranks):
        super().__init__()
        self.local = EXPERTS // ranks
        first, second = [], []
        for expert in range(rank * self.local, (rank + 1) * self.local):  # an expert's values do not depend on its rank
            generator = torch.Generator().manual_seed(1000 + expert)
            first.append(torch.randn(HIDDEN, INNER, generator=generator) / math.sqrt(HIDDEN))
            second.append(torch.randn(INNER, HIDDEN, generator=generator) / math.sqrt(INNER))
        self.first, self.second = nn.Parameter(torch.stack(first)), nn.Parameter(torch.stack(second))

    def forward(self, rows, topk, weights):  # [rows][hidden], [rows][topk] with -1, [rows][topk]
        made = torch.zeros_like(rows)
        for expert in range(self.local):
            at, k = (topk == expert).nonzero(as_tuple=True)
            y = nn.functional.gelu(rows[at] @ self.first[expert]) @ self.second[expert]
            made = made.index_add(0, at, y * weights[at, k].unsqueeze(-1).to(y.dtype))
        return made


class Dense(nn.Module):
    """All but the experts: the same on every rank."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Linear(VOCABULARY, HIDDEN, bias=False)
        self.attention, self.router = Attention(), Router()
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(3))
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def before(self, tokens):
        """What the experts get, and the residual."""
        x = self.embedding(nn.functional.one_hot(tokens, VOCABULARY).to(self.head.weight.dtype))
        x = x + self.attention(self.norms[0](x))
        flat = x.view(-1, HIDDEN)
        return self.norms[1](flat), flat

    def after(self, residual, made, targets):
        logits = self.head(self.norms[2](residual + made)).float()
        return nn.functional.cross_entropy(logits, targets.reshape(-1))


class Model(nn.Module):
    """A rank's."""

    def __init__(self, rank, ranks):
        super().__init__()
        self.dense, self.experts = Dense(), Experts(rank, ranks)

    def forward(self, tokens, targets, buffer: strait.torch.ep.Buffer):
        x, residual = self.dense.before(tokens)
        topk, weights = self.dense.router(x)
        received = buffer.dispatch(x, topk, weights)
        made = self.experts(received.tokens, received.topk, received.weights)
        return self.dense.after(residual, buffer.combine(made, received), targets)


def batch(step, rank, device):
    """Sequences that count up by a step of their own, which is what there is to learn."""
    generator = torch.Generator().manual_seed(step * 1000 + rank)
    count = 4 + (step + rank) % 3  # ranks have different numbers of tokens
    start, stride = (torch.randint(0, VOCABULARY, (count, 1), generator=generator) for _ in range(2))
    numbers = (start + stride % 5 * torch.arange(33)) % VOCABULARY
    return numbers[:, :-1].to(device), numbers[:, 1:].to(device)


TOKENS_MAX = 6 * 32
