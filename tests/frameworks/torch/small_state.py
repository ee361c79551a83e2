"""A whole training state of a small model, as training leaves it, and what checkpoints of it weigh.

    small_state.py [--steps 600] [--state FILE] [--folder DIR]

Trains a decoder with mixtures of experts on the source text of Python's library, with AdamW, F32 master weights and
BF16 autocast, on the CPU: 7.5 million parameters, some five minutes for 600 steps on two processors. --state keeps the
state, or takes the one that is there. Then saves it as several kinds of training would, and prints the ratios.
"""

import argparse
import math
import sysconfig
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from strait import checkpoint

WIDTH, LAYERS, HEADS = 256, 4, 4
EXPERTS, CHOSEN, HIDDEN = 8, 2, 256
CONTEXT, BATCH = 256, 8
RATE, WARM_UP = 1e-3, 40
TEXT_BYTES = 24_000_000


# ---- Model ----------------------------------------------------------------------------------------------------------


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return functional.rms_norm(x.float(), (WIDTH,)).to(x.dtype) * self.weight.to(x.dtype)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs, self.output = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.inputs(x).chunk(3, dim=-1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Experts(nn.Module):
    """Each token goes through the two experts that the router likes best."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * HIDDEN) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) / (4 * HIDDEN**0.5))
        self.imbalance = torch.zeros(())

    def forward(self, x):
        tokens = x.flatten(0, 1)
        likes = self.router(tokens).float().softmax(-1)
        weights, experts = likes.topk(CHOSEN)
        weights = weights / weights.sum(-1, keepdim=True)
        shares = functional.one_hot(experts, EXPERTS).float().sum(1).mean(0) / CHOSEN
        self.imbalance = EXPERTS * (likes.mean(0) * shares).sum()
        summed = torch.zeros(tokens.shape, dtype=torch.float32)
        for expert in range(EXPERTS):
            rows, place = (experts == expert).nonzero(as_tuple=True)
            values, gate = (tokens[rows] @ self.up[expert].to(tokens.dtype)).chunk(2, -1)
            out = (functional.silu(gate) * values) @ self.down[expert].to(tokens.dtype)
            summed = summed.index_add(0, rows, out.float() * weights[rows, place, None])
        return summed.to(x.dtype).view_as(x)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.attention, self.experts = Norm(), Norm(), Attention(), Experts()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.experts(self.norm2(x))


class Decoder(nn.Module):
    """Of bytes; the embedding is also the head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.positions = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(LAYERS)), Norm()

    def forward(self, text):
        x = self.embedding(text) + self.positions[: text.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.embedding.weight.t().to(x.dtype)


# ---- Training -------------------------------------------------------------------------------------------------------


def text_of_python():
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("**/*.py"))
    text = bytearray()
    for file in files:
        if "site-packages" not in file.parts and len(text) < TEXT_BYTES:
            text += file.read_bytes()
    return torch.frombuffer(text, dtype=torch.uint8).long()


def train(steps, marks=()):
    """The marks and the last step, each with its state: for each parameter weights, moments, gradients, in F32."""
    torch.manual_seed(0)
    text, model = text_of_python(), Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    begin = time.monotonic()
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            cosine = 0.1 + 0.45 * (1 + math.cos(math.pi * step / steps))
            group["lr"] = RATE * min(1, step / WARM_UP) * cosine
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,))
        rows = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(rows[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        (loss + 0.01 * sum(layer.experts.imbalance for layer in model.layers)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}, {time.monotonic() - begin:.0f} s", flush=True)
        if step in marks or step == steps:
            yield step, _snapshot(model, optimizer)


def _snapshot(model, optimizer):
    return {
        name: {
            "weight": parameter.detach().clone(),
            "m": optimizer.state[parameter]["exp_avg"].clone(),
            "v": optimizer.state[parameter]["exp_avg_sq"].clone(),
            "gradient": parameter.grad.clone(),
        }
        for name, parameter in model.named_parameters()
    }


def state_of(steps, file=None, marks=()):
    """As train(), kept in a file."""
    if file is not None and Path(file).exists():
        return torch.load(file)
    states = {}
    for step, state in train(steps, marks):
        states[step] = state
        if file is not None:
            torch.save(states, file)
    return states


# ---- Mixes ----------------------------------------------------------------------------------------------------------

#: Kinds of tensors that a checkpoint of each mix holds, and of which type; a copy is rounded from "weight".
MIXES = {
    "FSDP2: F32 weights, m, v": {"weight": None, "m": None, "v": None},
    "Megatron: BF16 copy, F32 weights, m, v": {"copy": "weight", "weight": None, "m": None, "v": None},
    "nvCOMP's: BF16 weights, m, v, BF16 gradients": {"bf16": None, "m": None, "v": None, "gradient16": None},
    "F32 weights alone": {"weight": None},
    "m alone": {"m": None},
    "v alone": {"v": None},
}
_ROUNDED = {"copy": "weight", "bf16": "weight", "gradient16": "gradient"}


def mix_of(state, kinds):
    """Tensors by name, and what the copies among them are rounded from."""
    tensors, copies = {}, {}
    for name, values in state.items():
        for kind, master in kinds.items():
            tensors[f"{kind}.{name}"] = values[_ROUNDED[kind]].bfloat16() if kind in _ROUNDED else values[kind]
            if master is not None:
                copies[f"{kind}.{name}"] = f"{master}.{name}"
    return tensors, copies


def ratios(state, folder):
    found = {}
    for number, (name, kinds) in enumerate(MIXES.items()):
        tensors, copies = mix_of(state, kinds)
        path = f"{folder}/mix-{number}"
        checkpoint.save(path, tensors, rounded_from=copies)
        back = checkpoint.load(path, framework="pt")
        assert all(torch.equal(back[one], tensor) for one, tensor in tensors.items())
        with checkpoint.open(path) as one:
            found[name] = one.raw_bytes, one.stored_bytes
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--state", metavar="FILE")
    parser.add_argument("--folder", metavar="DIR")
    given = parser.parse_args()
    states = state_of(given.steps, given.state)
    last = max(states)
    count = sum(values["weight"].numel() for values in states[last].values())
    print(f"{count} parameters, {last} steps")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for name, (raw, stored) in ratios(states[last], folder).items():
            print(f"{name:48} {raw:12} {stored:12} {raw / stored:6.3f}")


if __name__ == "__main__":
    main()
