"""Expert parallelism for torch: dispatch and combine with gradients, over the ranks of a process group (strait.ep).

    buffer = strait.torch.ep.Buffer(experts=64, hidden=7168, tokens_max=4096, topk=8)         once, on all ranks
    received = buffer.dispatch(tokens, numbers, weights)      rows of tokens to the ranks of their experts
    made = experts(received.tokens, received.expert_counts)   each rank its own experts
    summed = buffer.combine(made, received)                   and back, summed for each token

The backward pass of a dispatch is a combine with the same routing, and of a combine a dispatch, so every rank takes
part in the same ones: outputs have to be used in the loss on each rank, also where no row came. Sums are in the order
of ranks (strait/ep.h, "Order of combine"), so results are the same bits each time.

CPU tensors go through shared memory between processes of one host, CUDA tensors between its GPUs, on the current
stream; between hosts both go by TCP.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from .. import ep as _ep
from ..errors import InvalidError, OutOfMemoryError

__all__ = ["Buffer", "Received"]


# ---- Memory of the heap ---------------------------------------------------------------------------------------------


class _Block:
    """Memory of a group's heap, as torch takes it over; it goes back when no tensor is left."""

    def __init__(self, heap: _Heap, address: int, size: int):
        self._heap, self.address = heap, address
        interface = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}
        if heap.device.type == "cuda":
            self.__cuda_array_interface__ = interface | {"stream": None}
        else:
            self.__array_interface__ = interface

    def __del__(self) -> None:
        self._heap.give_back(self.address)


class _Heap:
    """Tensors that peers reach without a copy in between."""

    def __init__(self, group: _ep.Group, device: torch.device):
        self.group, self.device = group, device
        self._pending: list[tuple[Any, int]] = []  # what work on the GPU may still use

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """OutOfMemoryError."""
        size = dtype.itemsize
        for length in shape:
            size *= length
        self._reap()
        block = _Block(self, self.group.alloc(max(size, 1)), max(size, 1))
        if self.device.type == "cuda":
            memory = torch.as_tensor(block, device=self.device)
        else:
            import numpy as np

            memory = torch.from_numpy(np.asarray(block))
        return memory[:size].view(dtype).view(shape)

    def give_back(self, address: int) -> None:
        if self.device.type == "cuda":
            with contextlib.suppress(Exception):  # the interpreter may be ending
                self._pending.append((torch.cuda.current_stream(self.device).record_event(), address))
            return
        self.group.free(address)

    def _reap(self) -> None:
        while self._pending and self._pending[0][0].query():
            self.group.free(self._pending.pop(0)[1])


# ---- Routings -------------------------------------------------------------------------------------------------------


class _Routing:
    """A handle that is updated, as long as anything of its step is left; then it serves another step."""

    def __init__(self, buffer: Buffer, handle: _ep.Handle):
        self.buffer, self.handle = buffer, handle
        self.tokens = self.rows = 0  # rows: of the tensors of what arrives
        self.padded = False  # some of them may be left alone

    def __del__(self) -> None:
        self.buffer._idle.append(self.handle)


class Received:
    """What a dispatch brought to this rank.

    tokens          flat, expert_major of high throughput: [rows][hidden]; rank_major [ranks][tokens_max][hidden];
                    expert_major of low latency [local experts][ranks * tokens_max][hidden]
    weights         of the rows, as the layout has them: [..][topk], or one for each row (expert_major); None: not given
    topk            numbers of local experts, -1: of another rank's (flat, rank_major)
    scales          of the rows, if they were given
    expert_counts   [local experts] rows of each, expert_offsets where they begin (expert_major, high throughput)
    rank_counts     [ranks] rows from each rank
    total           rows, as a number, where it was read from the GPU; else None
    """

    def __init__(self, routing: _Routing):
        self._routing = routing
        self._wait: Callable[[], None] | None = None
        self.tokens: torch.Tensor = torch.empty(0)
        self.weights: torch.Tensor | None = None
        self.topk: torch.Tensor | None = None
        self.scales: torch.Tensor | None = None
        self.expert_counts: torch.Tensor | None = None
        self.expert_offsets: torch.Tensor | None = None
        self.rank_counts: torch.Tensor | None = None
        self.total: int | None = None

    def wait(self) -> None:
        """Receives what a dispatch with send_only began; nothing to do after any other."""
        wait, self._wait = self._wait, None
        if wait is not None:
            wait()


# ---- Functions ------------------------------------------------------------------------------------------------------


def _combine_rows(ctx: Any, tokens: Any, weights: Any, _: Any) -> Any:
    """Backward of a dispatch."""
    buffer, routing = ctx.routing.buffer, ctx.routing
    out = torch.empty(ctx.shape, dtype=ctx.dtype, device=tokens.device)
    made = None
    if ctx.weighted:
        made = torch.empty((routing.tokens, buffer.topk), dtype=torch.float32, device=tokens.device)
    routing.handle.combine(
        tokens.contiguous(),
        out,
        weights=weights.contiguous() if ctx.weighted else None,
        out_weights=made,
        stream=buffer._stream(),
    )
    return out, made, None, None, None


def _dispatch_sums(ctx: Any, grad: Any) -> Any:
    """Backward of a combine."""
    routing = ctx.routing
    out = routing.buffer._rows(routing, ctx.hidden, ctx.dtype)
    routing.handle.dispatch(grad.contiguous(), out, stream=routing.buffer._stream())
    return out, None


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Any, weights: Any, routing: _Routing, scales: Any, numbers: Any) -> Any:
        buffer = routing.buffer
        out = buffer._rows(routing, tokens.shape[-1], tokens.dtype)
        made = None if weights is None else buffer._beside(routing, torch.float32)
        ctx.routing, ctx.shape, ctx.dtype, ctx.weighted = routing, tokens.shape, tokens.dtype, weights is not None
        out_scales = None if scales is None else buffer._rows(routing, scales.shape[-1], scales.dtype)
        routing.handle.dispatch(
            tokens,
            out,
            weights=weights,
            out_weights=made,
            scales=scales,
            out_scales=out_scales,
            out_topk=numbers,
            stream=buffer._stream(),
        )
        if out_scales is not None:
            ctx.mark_non_differentiable(out_scales)
        return out, made, out_scales

    backward = staticmethod(once_differentiable(_combine_rows))


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Any, routing: _Routing) -> Any:
        ctx.routing, ctx.hidden, ctx.dtype = routing, rows.shape[-1], rows.dtype
        out = torch.empty((routing.tokens, rows.shape[-1]), dtype=rows.dtype, device=rows.device)
        routing.handle.combine(rows, out, stream=routing.buffer._stream())
        return out

    backward = staticmethod(once_differentiable(_dispatch_sums))


# ---- The buffer -----------------------------------------------------------------------------------------------------


class Buffer:
    """Dispatch and combine among the ranks of a process group (None: the default one), which all make it together and
    with the same arguments. Expert e lives on rank e // (experts // ranks).

    algorithm: "high_throughput" for many tokens, with gradients; "low_latency" for few, without.
    layout: "flat" (high throughput, its default), "rank_major" (low latency), "expert_major" (both; default of low
    latency).
    tokens_max: that a rank dispatches in one call. hidden, dtype: of the largest rows. topk: experts of a token.
    scale_bytes: of a token's scales, for rows of FP8.
    expert_alignment: rows that an expert's zone begins at a multiple of (expert_major, high throughput).
    receive_max: tokens that a rank has room for; 0: for all that can come. overflow: what is done beyond.
    heap_bytes: for tensors that rows go straight into; as long as there is room, those of dispatch are.
    device: where tensors are; None: the current GPU with a process group of NCCL, else the CPU.
    The other arguments are those of strait.ep.Group.

    Threads: calls must not overlap. close() ends it, when nothing of it is under way.
    """

    def __init__(
        self,
        group: Any = None,
        *,
        experts: int,
        tokens_max: int,
        hidden: int,
        topk: int,
        algorithm: _ep.Algorithm = "high_throughput",
        layout: _ep.Layout | None = None,
        dtype: torch.dtype = torch.bfloat16,
        scale_bytes: int = 0,
        expert_alignment: int = 0,
        receive_max: int = 0,
        overflow: Literal["trap", "drop"] = "trap",
        coding: Literal["auto", "raw", "coded"] = "auto",
        sm_budget: int = 0,
        mask: bool = False,
        timeout: float = 0,
        heap_bytes: int = 0,
        device: torch.device | str | None = None,
    ):
        self._idle: list[_ep.Handle] = []
        self._process_group = dist.group.WORLD if group is None else group
        if device is None and dist.get_backend(self._process_group) == "nccl":
            device = torch.device("cuda", torch.cuda.current_device())
        self.device = torch.device("cpu" if device is None else device)
        self.rank, self.ranks = dist.get_rank(self._process_group), dist.get_world_size(self._process_group)
        self.algorithm = algorithm
        self.layout: _ep.Layout = layout or ("flat" if algorithm == "high_throughput" else "expert_major")
        self.experts, self.local_experts = experts, experts // self.ranks
        self.tokens_max, self.topk, self.expert_alignment = tokens_max, topk, expert_alignment
        with self._current():
            self.group = _ep.Group(
                self._gather,
                self.rank,
                self.ranks,
                algorithm=algorithm,
                experts=experts,
                tokens_max=tokens_max,
                row_bytes_max=hidden * dtype.itemsize,
                topk_max=topk,
                memory="cuda" if self.device.type == "cuda" else "host",
                scale_bytes_max=scale_bytes,
                receive_max=receive_max,
                sm_budget=sm_budget,
                overflow=overflow,
                coding=coding,
                mask=mask,
                timeout=timeout,
                heap_bytes=heap_bytes,
            )
        self._heap = _Heap(self.group, self.device) if heap_bytes > 0 else None

    def _gather(self, given: bytes) -> bytes:
        gathered: list[Any] = [None] * self.ranks
        dist.all_gather_object(gathered, given, group=self._process_group)
        return b"".join(gathered)

    def _current(self) -> Any:
        return torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()

    def _stream(self) -> int:
        """Address of torch's current stream."""
        if self.device.type != "cuda":
            return 0
        address: int = torch.cuda.current_stream(self.device).cuda_stream
        return address

    # ---- Tensors ----------------------------------------------------------------------------------------------------

    def empty(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """A tensor of the heap: what a combine is given lies best there. OutOfMemoryError: no heap, or no room."""
        if self._heap is None:
            raise OutOfMemoryError("the buffer has no heap: give it heap_bytes")
        return self._heap.empty(shape, dtype)

    def _shape(self, routing: _Routing) -> tuple[int, ...]:
        """Of what arrives, without the last dimension."""
        if self.algorithm == "high_throughput":
            return (routing.rows,)
        if self.layout == "rank_major":
            return (self.ranks, self.tokens_max)
        return (self.local_experts, self.ranks * self.tokens_max)

    def _rows(self, routing: _Routing, hidden: int, dtype: torch.dtype) -> torch.Tensor:
        """For rows that arrive. Those that no row comes to are zero where there are any (high throughput)."""
        shape = (*self._shape(routing), hidden)
        out = None
        if self._heap is not None:
            with contextlib.suppress(OutOfMemoryError):
                out = self._heap.empty(shape, dtype)
        if out is None:
            out = torch.empty(shape, dtype=dtype, device=self.device)
        if routing.padded:
            out.view(torch.uint8).zero_()
        return out

    def _beside(self, routing: _Routing, dtype: torch.dtype) -> torch.Tensor:
        """For what each row has besides: weights or numbers of experts."""
        shape = self._shape(routing)
        if self.layout != "expert_major":
            shape = (*shape, self.topk)
        make: Any = torch.zeros if routing.padded else torch.empty
        made: torch.Tensor = make(shape, dtype=dtype, device=self.device)
        return made

    def _counts(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.int32, device=self.device)

    # ---- Calls ------------------------------------------------------------------------------------------------------

    def _begin(self, tokens: torch.Tensor, topk: torch.Tensor) -> _Routing:
        """A routing, with a handle that no other step uses."""
        if tokens.dim() != 2 or topk.shape != (tokens.shape[0], self.topk):
            raise InvalidError(
                f"tokens are [tokens][hidden] and topk [tokens][{self.topk}],"
                f" not {tuple(tokens.shape)} and {tuple(topk.shape)}"
            )
        with self._current():
            handle = (
                self._idle.pop()
                if self._idle
                else self.group.handle(self.layout, self.topk, expert_alignment=self.expert_alignment)
            )
        routing = _Routing(self, handle)
        routing.tokens = tokens.shape[0]
        return routing

    def quantize(self, tokens: torch.Tensor, *, powers_of_two: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """What dispatch takes as tokens and scales, of tokens in BF16 [tokens][hidden]: E4M3 [tokens][hidden] and, in
        FP32, a scale for each 128 values that they are to be multiplied with, [tokens][hidden / 128]. The buffer has to
        have scale_bytes of hidden / 32. powers_of_two: scales are rounded up to one. There are no gradients."""
        tokens = tokens.detach().contiguous()
        quantized = torch.empty_like(tokens, dtype=torch.float8_e4m3fn)
        scales = torch.empty((*tokens.shape[:-1], tokens.shape[-1] // 128), dtype=torch.float32, device=tokens.device)
        self.group.quantize(tokens, quantized, scales, powers_of_two=powers_of_two, stream=self._stream())
        return quantized, scales

    def dispatch(
        self,
        tokens: torch.Tensor,
        topk: torch.Tensor,
        weights: torch.Tensor | None = None,
        *,
        scales: torch.Tensor | None = None,
        capacity: int | None = None,
        send_only: bool = False,
    ) -> Received:
        """Sends tokens [tokens][hidden] to the ranks of their experts topk [tokens][topk], int32 or int64, -1: none.

        weights: [tokens][topk], of FP32. scales: [tokens][..], of rows in FP8.
        capacity: rows that are made room for (high throughput). Without, as many as come, for which the host waits;
        with it nothing waits and a graph can be captured.
        send_only: Received.wait() receives (low latency).
        """
        tokens, topk = tokens.contiguous(), topk.contiguous()
        weights = None if weights is None else weights.float().contiguous()
        routing = self._begin(tokens, topk)
        received = Received(routing)
        if self.algorithm == "low_latency":
            self._dispatch_low_latency(received, tokens, topk, weights, scales, send_only)
            return received
        received.expert_counts, total = self._counts(self.local_experts), self._counts(1)
        received.rank_counts = self._counts(self.ranks)
        received.expert_offsets = self._counts(self.local_experts) if self.layout == "expert_major" else None
        routing.handle.update(
            topk,
            expert_counts=received.expert_counts,
            expert_offsets=received.expert_offsets,
            rank_counts=received.rank_counts,
            total=total,
            stream=self._stream(),
        )
        if capacity is None:
            received.total = int(total.item())
        routing.rows = capacity if capacity is not None else int(received.total or 0)
        routing.padded = capacity is not None or self.expert_alignment > 1
        if self.layout == "flat":
            received.topk = self._beside(routing, torch.int32)
            if routing.padded:
                received.topk.fill_(-1)
        received.tokens, received.weights, received.scales = _Dispatch.apply(
            tokens, weights, routing, scales, received.topk
        )
        return received

    def _dispatch_low_latency(
        self,
        received: Received,
        tokens: torch.Tensor,
        topk: torch.Tensor,
        weights: torch.Tensor | None,
        scales: torch.Tensor | None,
        send_only: bool,
    ) -> None:
        routing = received._routing
        if torch.is_grad_enabled() and (tokens.requires_grad or (weights is not None and weights.requires_grad)):
            raise InvalidError("low_latency has no gradients: use high_throughput, or torch.no_grad()")
        experts = self.layout == "expert_major"
        received.expert_counts = self._counts(self.local_experts) if experts else None
        received.rank_counts = self._counts(self.ranks)
        received.tokens = self._rows(routing, tokens.shape[-1], tokens.dtype)
        received.scales = None if scales is None else self._rows(routing, scales.shape[-1], scales.dtype)
        received.topk = None if experts else self._beside(routing, torch.int32)
        received.weights = None if weights is None else self._beside(routing, torch.float32)
        routing.handle.update(topk, stream=self._stream())
        routing.handle.dispatch(
            tokens,
            received.tokens,
            weights=weights,
            out_weights=received.weights,
            scales=scales,
            out_scales=received.scales,
            out_topk=received.topk,
            expert_counts=received.expert_counts,
            rank_counts=received.rank_counts,
            send_only=send_only,
            stream=self._stream(),
        )
        if send_only:
            received._wait = lambda: routing.handle.complete(self._stream())

    def combine(
        self, rows: torch.Tensor, received: Received, *, weights: torch.Tensor | None = None, send_only: bool = False
    ) -> Any:
        """The sum of each token's rows, [tokens][hidden]. rows: what the experts made of received.tokens, in the same
        places. expert_major of low latency multiplies them with `weights` [tokens][topk], or with those of the
        dispatch; elsewhere the caller has done so. send_only: a pair of the sums and a function that receives them (low
        latency)."""
        received.wait()
        routing, rows = received._routing, rows.contiguous()
        if self.algorithm == "high_throughput":
            if weights is not None or send_only:
                raise InvalidError("weights and send_only are of low_latency")
            return _Combine.apply(rows, routing)
        if torch.is_grad_enabled() and rows.requires_grad:
            raise InvalidError("low_latency has no gradients: use high_throughput, or torch.no_grad()")
        out = torch.empty((routing.tokens, rows.shape[-1]), dtype=rows.dtype, device=rows.device)
        given = None if weights is None else weights.float().contiguous()
        routing.handle.combine(rows, out, out_weights=given, send_only=send_only, stream=self._stream())
        if not send_only:
            return out
        return out, lambda: routing.handle.complete(self._stream())

    # ---- State ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises what has failed: a rank that is gone, or more rows than there is room for."""
        self.group.check()

    @property
    def info(self) -> _ep.Info:
        return self.group.info

    def close(self) -> None:
        """Waits for the GPU and ends the buffer. Tensors of the heap are no more."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._idle.clear()
        self.group.close()

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
