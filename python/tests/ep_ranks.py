"""One rank of the tests of strait.torch.ep: ep_ranks.py STORE RANK RANKS [PART ...]. Compares results and gradients
with those of the same step without ranks, of whole numbers, whose sums are exact in any order."""

import sys

import strait.torch.ep
import torch
import torch.distributed as dist

EXPERTS, TOPK, TOKENS, HIDDEN = 8, 2, 12, 64


def inputs(rank, dtype):
    """Tokens of whole numbers: sums are exact in any order."""
    generator = torch.Generator().manual_seed(rank)
    count = (TOKENS, 0, 5, 7)[rank % 4]
    tokens = torch.randint(-4, 5, (count, HIDDEN), generator=generator).to(dtype)
    topk = torch.stack(
        [torch.randperm(EXPERTS, generator=generator)[:TOPK] for _ in range(count)] or [torch.zeros(TOPK)]
    )
    topk = topk[:count].long()
    topk[torch.rand(topk.shape, generator=generator) < 0.2] = -1
    weights = torch.randint(1, 4, (count, TOPK), generator=generator).float()
    return tokens.requires_grad_(), topk, weights.requires_grad_()


def factor(expert):
    """What an expert multiplies a token with."""
    return expert % 3 + 1


def expected(tokens, topk, weights):
    """The step in one process."""
    factors = torch.where(topk >= 0, topk % 3 + 1, 0).float() * weights
    return (tokens.float() * factors.sum(-1, keepdim=True)).to(tokens.dtype)


def flat(received, buffer, rank):
    local = received.topk + rank * buffer.local_experts
    factors = torch.where(received.topk >= 0, local % 3 + 1, 0).float() * received.weights
    return (received.tokens.float() * factors.sum(-1, keepdim=True)).to(received.tokens.dtype)


def zones(received, buffer, rank):
    factors = torch.zeros(len(received.tokens))
    for e, (begin, count) in enumerate(zip(received.expert_offsets.tolist(), received.expert_counts.tolist())):
        factors[begin : begin + count] = factor(rank * buffer.local_experts + e)
    assert (received.tokens.detach()[factors == 0] == 0).all()
    return (received.tokens.float() * (factors * received.weights).unsqueeze(-1)).to(received.tokens.dtype)


def train(rank, layout, experts, dtype, **options):
    tokens, topk, weights = inputs(rank, dtype)
    capacity = options.pop("capacity", None)
    make = {"experts": EXPERTS, "hidden": HIDDEN, "tokens_max": TOKENS, "topk": TOPK, "layout": layout, "dtype": dtype}
    with strait.torch.ep.Buffer(**make, timeout=60, **options) as buffer:
        for _ in range(2):  # the second step gets the first one's handle
            tokens.grad = weights.grad = None
            received = buffer.dispatch(tokens, topk, weights, capacity=capacity)
            out = buffer.combine(experts(received, buffer, rank), received)
            assert capacity is None or len(received.tokens) == capacity
            (out.float() * torch.arange(1, HIDDEN + 1).remainder(3)).sum().backward()
            ours = out.detach(), tokens.grad, weights.grad
            tokens.grad = weights.grad = None
            reference = expected(tokens, topk, weights)
            (reference.float() * torch.arange(1, HIDDEN + 1).remainder(3)).sum().backward()
            for one, other in zip(ours, (reference.detach(), tokens.grad, weights.grad)):
                assert one.dtype == other.dtype and torch.equal(one, other), (one, other)
            del received, out
            assert len(buffer._idle) == 1
        buffer.check()


def low_latency(rank):
    tokens, topk, weights = inputs(rank, torch.bfloat16)
    make = {"experts": EXPERTS, "hidden": HIDDEN, "tokens_max": TOKENS, "topk": TOPK, "algorithm": "low_latency"}
    with strait.torch.ep.Buffer(**make, timeout=60) as buffer:
        try:
            buffer.dispatch(tokens, topk)
            raise AssertionError("gradients of low_latency")
        except ValueError as failure:
            assert "no gradients" in str(failure)
        with torch.no_grad():
            for send_only in (False, True):
                received = buffer.dispatch(tokens, topk, weights, send_only=send_only)
                received.wait()
                assert int(received.expert_counts.sum()) <= TOKENS * buffer.ranks * TOPK
                rows = torch.zeros_like(received.tokens)
                for e, count in enumerate(received.expert_counts.tolist()):
                    rows[e, :count] = received.tokens[e, :count] * factor(rank * buffer.local_experts + e)
                out = buffer.combine(rows, received, send_only=send_only)
                if send_only:
                    out, wait = out
                    wait()
                assert torch.equal(out, expected(tokens, topk, weights))


def quantized(rank):
    """BF16 crosses as E4M3, and comes back as far from what it was as E4M3 values are from each other."""
    hidden, generator = 512, torch.Generator().manual_seed(rank)
    make = {"experts": EXPERTS, "hidden": hidden, "tokens_max": TOKENS, "topk": TOPK, "layout": "rank_major"}
    make |= {"algorithm": "low_latency", "scale_bytes": hidden // 32, "dtype": torch.float32}
    tokens = torch.randn((TOKENS, hidden), generator=generator).bfloat16()
    topk = torch.stack([torch.randperm(EXPERTS, generator=generator)[:TOPK] for _ in range(TOKENS)])
    with strait.torch.ep.Buffer(**make, timeout=60) as buffer, torch.no_grad():
        for wrong, why in ((tokens.float(), "not of float32"), (tokens[:, :192], "a multiple of 128")):
            try:
                buffer.quantize(wrong)
                raise AssertionError(why)
            except ValueError as failure:
                assert why in str(failure)
        for powers_of_two in (False, True):
            rows, scales = buffer.quantize(tokens, powers_of_two=powers_of_two)
            blocks = tokens.float().view(TOKENS, -1, 128)
            exact = blocks.abs().amax(-1) * torch.tensor(1 / 448)
            assert torch.equal(scales, torch.exp2(exact.log2().ceil()) if powers_of_two else exact)
            received = buffer.dispatch(rows, topk, scales=scales)
            assert received.tokens.dtype == torch.float8_e4m3fn
            wide = received.tokens.float().view(buffer.ranks, TOKENS, -1, 128) * received.scales.unsqueeze(-1)
            back = buffer.combine(wide.view(buffer.ranks, TOKENS, hidden), received).view(blocks.shape)
            ranks = torch.tensor([len(set(numbers)) for numbers in (topk // buffer.local_experts).tolist()])
            error = (back / ranks.view(-1, 1, 1) - blocks).abs()
            assert (error <= blocks.abs() / 15.99 + scales.unsqueeze(-1) * 2**-9.99).all()


PARTS = {
    "flat": lambda rank: train(rank, "flat", flat, torch.float32),
    "flat-bf16-coded-heap": lambda rank: train(rank, "flat", flat, torch.bfloat16, coding="coded", heap_bytes=1 << 20),
    "flat-capacity": lambda rank: train(rank, "flat", flat, torch.bfloat16, capacity=64),
    "zones": lambda rank: train(rank, "expert_major", zones, torch.float32, expert_alignment=8),
    "zones-heap": lambda rank: train(rank, "expert_major", zones, torch.bfloat16, heap_bytes=1 << 20),
    "low-latency": low_latency,
    "quantized": quantized,
}

if __name__ == "__main__":
    store, rank, ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    for name in sys.argv[4:] or PARTS:
        PARTS[name](rank)
        print(name, flush=True)
    dist.barrier()
    dist.destroy_process_group()
