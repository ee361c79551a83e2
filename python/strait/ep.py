"""Expert parallelism: tokens to the ranks of their experts, and what the experts made of them back (strait/ep.h).

    group = strait.ep.Group(all_gather, rank, ranks, algorithm="high_throughput", experts=8, tokens_max=4096,
                            row_bytes_max=2 * hidden, topk_max=2)
    handle = group.handle("flat", topk=2)
    handle.update(numbers, total=total)                    which token goes to which experts
    handle.dispatch(tokens, received)                      rows to the ranks of their experts
    handle.combine(made, summed)                           and back, summed for each token

Tensors are numpy's or torch's, on the host, or of torch on the GPU that was current when a group was made with
memory="cuda". They are contiguous, the last dimension is a row, and outputs are given. strait.torch.ep.Buffer makes
tensors by itself and has gradients.

Threads: calls on a group and its handles must not overlap, except Group.error. On GPUs they queue work on a stream, and
tensors have to stay until it is done. Calls release the GIL. Needs libstrait-ep.so.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import byref
from types import TracebackType
from typing import Any, Literal, NamedTuple

from . import _abi, _abi_ep
from ._views import array_view, dtype_name
from .errors import InvalidError, OutOfMemoryError, Status, make_error

__all__ = ["Group", "Handle", "Info"]

lib = _abi_ep.load_ep()

Algorithm = Literal["low_latency", "high_throughput"]
Layout = Literal["expert_major", "rank_major", "flat"]
Memory = Literal["host", "cuda"]
Coding = Literal["auto", "raw", "coded"]
Overflow = Literal["trap", "drop"]

_TEXT_BYTES = 512
#: Values that can be summed, or that the codec knows; all others are bytes.
_ELEMENTS = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}
#: Where tensors without values lie, which have no address of their own.
_NOTHING = ctypes.create_string_buffer(512)
_NOTHING_AT = (ctypes.addressof(_NOTHING) + 255) // 256 * 256


class Info(NamedTuple):
    """medium: what rows cross. sent_bytes, raw_bytes: of rows to other ranks so far, as they crossed and as they are
    (groups in host memory). coded_calls: dispatches and combines so far whose rows are compressed."""

    medium: str
    coded: bool
    arena_bytes: int
    sent_bytes: int
    raw_bytes: int
    coded_calls: int


class _Place(NamedTuple):
    """Where a tensor lies. rows: of its last dimension."""

    address: int
    rows: int
    row_bytes: int
    kind: str  # of its values, as numpy and torch call it


def _check(status: int, what: str) -> None:
    if status != Status.OK:
        raise make_error(status, f"{what}: {_abi.status_text(status)}")


def _choice(name: str, value: str, choices: dict[str, int]) -> int:
    if value not in choices:
        raise InvalidError(f"{name} is {', '.join(choices)}, not {value!r}")
    return choices[value]


def _place(tensor: Any, memory: str, what: str) -> _Place:
    """TypeError, ValueError: it is no tensor, lies elsewhere, or is not contiguous."""
    if type(tensor).__module__.partition(".")[0] == "torch":
        expected = "cpu" if memory == "host" else "cuda"
        if tensor.device.type != expected:
            raise ValueError(f"{what} is on {tensor.device}, and the group's memory is {memory}")
        shape, size, kind = tuple(tensor.shape), tensor.element_size(), str(tensor.dtype).removeprefix("torch.")
        contiguous, address = tensor.is_contiguous(), tensor.data_ptr()
    elif memory == "host":
        array = array_view(tensor, what)
        shape, size, kind = array.shape, array.itemsize, dtype_name(array.dtype)
        contiguous, address = bool(array.flags.c_contiguous), array.ctypes.data
    else:
        raise TypeError(f"{what} is a {type(tensor).__name__}, not a tensor of torch")
    if not contiguous:
        raise ValueError(f"{what} is not contiguous")
    if not shape:
        raise ValueError(f"{what} has no dimension")
    if 0 in shape:
        address = _NOTHING_AT
    rows = 1
    for length in shape[:-1]:
        rows *= length
    return _Place(address, rows, shape[-1] * size, kind)


def _tensor(place: _Place) -> _abi_ep.EpTensor:
    element = _abi.ELEMENTS[_ELEMENTS.get(place.kind, "bytes")]
    return _abi_ep.EpTensor(data=place.address, row_bytes=place.row_bytes, type=element)


class Group:
    """A rank's group. All ranks make it together and with the same arguments, but for all_gather and rank.

    all_gather: given this rank's bytes it returns those of all ranks, in their order, one after another. It is called
    while the group and its handles are made. What it raises is raised again.
    row_bytes_max: of a token's row, a multiple of 16. scale_bytes_max: of its scales; 0: there are none.
    receive_max: tokens that a rank has room for (high throughput); 0: for all that can come.
    timeout: seconds, after which a rank that is waited for is given up. mask: it is left out then (low latency).
    heap_bytes: of memory for alloc().

    InvalidError, UnsupportedError (cuda without the plugin), TimedOutError (a host that is not reached), OutOfMemoryError, DeviceError.
    """

    def __init__(
        self,
        all_gather: Callable[[bytes], bytes],
        rank: int,
        rank_count: int,
        *,
        algorithm: Algorithm,
        experts: int,
        tokens_max: int,
        row_bytes_max: int,
        topk_max: int,
        memory: Memory = "host",
        scale_bytes_max: int = 0,
        receive_max: int = 0,
        sm_budget: int = 0,
        overflow: Overflow = "trap",
        coding: Coding = "auto",
        mask: bool = False,
        timeout: float = 0,
        heap_bytes: int = 0,
    ):
        self._group: ctypes.c_void_p | None = None
        self._handles: set[Handle] = set()
        self.rank, self.rank_count, self.memory, self.algorithm = rank, rank_count, memory, algorithm
        self.experts, self.tokens_max = experts, tokens_max
        self._gather, self._failure = all_gather, None
        self._callback = _abi_ep.EpAllGather(self._on_gather)  # called by handles too
        config = _abi_ep.EpConfig(
            size=ctypes.sizeof(_abi_ep.EpConfig),
            all_gather=self._callback,
            rank=rank,
            rank_count=rank_count,
            algorithm=_choice("algorithm", algorithm, _abi_ep.EP_ALGORITHMS),
            memory=_choice("memory", memory, _abi_ep.EP_MEMORY),
            experts=experts,
            tokens_max=tokens_max,
            receive_max=receive_max,
            row_bytes_max=row_bytes_max,
            scale_bytes_max=scale_bytes_max,
            topk_max=topk_max,
            sm_budget=sm_budget,
            overflow=_choice("overflow", overflow, _abi_ep.EP_OVERFLOW),
            coding=_choice("coding", coding, _abi_ep.EP_CODING),
            mask=mask,
            timeout_ns=round(timeout * 1e9),
            heap_bytes=heap_bytes,
        )
        group, text = ctypes.c_void_p(), ctypes.create_string_buffer(_TEXT_BYTES)
        status = lib.strait_ep_group_create(byref(config), byref(group), text, _TEXT_BYTES)
        self._raise_failure()
        if status != Status.OK:
            raise make_error(status, f"group: {text.value.decode(errors='replace') or _abi.status_text(status)}")
        self._group = group

    _failure: BaseException | None

    def _on_gather(self, _: Any, send: int, receive: int, size: int) -> int:
        try:
            gathered = self._gather(ctypes.string_at(send, size))
            if len(gathered) != size * self.rank_count:
                raise ValueError(f"all_gather returned {len(gathered)} bytes, not {size * self.rank_count}")
            ctypes.memmove(receive, gathered, len(gathered))
            return 0
        except BaseException as failure:  # it must not pass through C
            self._failure = failure
            return -1

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _open(self) -> ctypes.c_void_p:
        if self._group is None:
            raise InvalidError("the group is closed")
        return self._group

    def handle(self, layout: Layout, topk: int, *, expert_alignment: int = 0) -> Handle:
        """A handle: the routing of one step. All ranks make the same ones. expert_alignment: rows that an expert's zone
        begins at a multiple of ("expert_major", high throughput)."""
        return Handle(self, layout, topk, expert_alignment)

    def alloc(self, size: int) -> int:
        """The address of memory of the heap, which peers reach without a copy in between. OutOfMemoryError."""
        address: int | None = lib.strait_ep_alloc(self._open(), size)
        if address is None:
            raise OutOfMemoryError(f"the heap has no {size} bytes", Status.ERR_NO_MEMORY)
        return address

    def free(self, address: int) -> None:
        """Gives back what alloc() returned, once no work uses it. After close() there is nothing to do."""
        if self._group is not None:
            lib.strait_ep_free(self._group, address)

    def quantize(self, rows: Any, quantized: Any, scales: Any, *, powers_of_two: bool = False, stream: int = 0) -> None:
        """Makes rows for a dispatch of FP8: of [..][values] in BF16 as many in E4M3, with a scale in FP32 for each 128
        values, [..][values / 128], that they are to be multiplied with. powers_of_two: scales are rounded up to one."""
        places = [_place(rows, self.memory, "rows"), _place(quantized, self.memory, "quantized")]
        beside = _place(scales, self.memory, "scales")
        if [place.kind for place in (*places, beside)] != ["bfloat16", "float8_e4m3fn", "float32"]:
            raise ValueError(
                "rows, quantized and scales are of bfloat16, float8_e4m3fn and float32, not of"
                f" {places[0].kind}, {places[1].kind} and {beside.kind}"
            )
        count, values, each = places[0].rows, places[0].row_bytes // 2, _abi_ep.EP_SCALE_VALUES
        if (places[1].rows, places[1].row_bytes) != (count, values) or values % each != 0:
            raise ValueError(f"quantized is not {count} rows of {values} values, a multiple of {each}")
        if (beside.rows, beside.row_bytes) != (count, values // each * 4):
            raise ValueError(f"scales is not {count} rows of {values // each} values")
        arguments = _abi_ep.EpQuantization(
            size=ctypes.sizeof(_abi_ep.EpQuantization),
            rows=_tensor(places[0]),
            quantized=_tensor(places[1]),
            scales=beside.address,
            count=count,
            powers_of_two=powers_of_two,
        )
        _check(lib.strait_ep_quantize(self._open(), byref(arguments), stream), "quantize")

    @property
    def error(self) -> tuple[Status | int, int]:
        """What has failed, and the rank that was waited for in vain. (Status.OK, 0): nothing."""
        rank = ctypes.c_uint32()
        status = lib.strait_ep_async_error(self._open(), byref(rank))
        return (Status(status) if status in Status.__members__.values() else status, rank.value)

    def check(self) -> None:
        """Raises what has failed."""
        status, rank = self.error
        if status != Status.OK:
            raise make_error(status, f"the group has failed, at rank {rank}: {_abi.status_text(status)}")

    def clear_error(self) -> None:
        """Forgets timeouts of a group with mask."""
        lib.strait_ep_error_clear(self._open())

    def mask(self, stream: int = 0) -> list[bool]:
        """Which ranks take part, of a group with mask."""
        ranks = (ctypes.c_int32 * self.rank_count)()
        _check(lib.strait_ep_mask_get(self._open(), ranks, stream), "mask")
        return [bool(rank) for rank in ranks]

    def set_mask(self, ranks: list[bool], stream: int = 0) -> None:
        if len(ranks) != self.rank_count:
            raise InvalidError(f"the mask has {len(ranks)} ranks, the group {self.rank_count}")
        _check(lib.strait_ep_mask_set(self._open(), (ctypes.c_int32 * len(ranks))(*ranks), stream), "mask")

    @property
    def info(self) -> Info:
        info = _abi_ep.EpInfo(size=ctypes.sizeof(_abi_ep.EpInfo))
        lib.strait_ep_info(self._open(), byref(info))
        return Info(info.medium.decode(), info.coded, info.arena_bytes, info.sent_bytes, info.raw_bytes, info.coded_calls)

    def close(self) -> None:
        """Ends the handles and the group. No work of theirs may be under way."""
        for handle in list(self._handles):
            handle.close()
        group, self._group = self._group, None
        if group is not None:
            lib.strait_ep_group_destroy(group)

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_group", None):
            self.close()


class Handle:
    """The routing of a step, for its dispatches and combines, forward and backward. Made by Group.handle().

    `stream`: the address of a CUDA stream (torch.cuda.current_stream().cuda_stream); 0 on the host.
    """

    def __init__(self, group: Group, layout: Layout, topk: int, expert_alignment: int):
        self._handle: ctypes.c_void_p | None = None
        self.group, self.layout, self.topk = group, layout, topk
        self._kept: Any = None  # tensors of a call with send_only, until complete()
        config = _abi_ep.EpHandleConfig(
            size=ctypes.sizeof(_abi_ep.EpHandleConfig),
            layout=_choice("layout", layout, _abi_ep.EP_LAYOUTS),
            topk=topk,
            expert_alignment=expert_alignment,
        )
        handle = ctypes.c_void_p()
        status = lib.strait_ep_handle_create(group._open(), byref(config), byref(handle))
        group._raise_failure()
        _check(status, f"handle of layout {layout}, topk {topk}")
        self._handle = handle
        group._handles.add(self)

    def _open(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise InvalidError("the handle is closed")
        return self._handle

    # ---- Arguments --------------------------------------------------------------------------------------------------

    def _rows(self, tensor: Any, what: str) -> tuple[_abi_ep.EpTensor, int]:
        """The tensor, and its rows. None: it is not there."""
        if tensor is None:
            return _abi_ep.EpTensor(), 0
        place = _place(tensor, self.group.memory, what)
        return _tensor(place), place.rows

    def _values(self, tensor: Any, kind: str, count: int, what: str) -> int | None:
        """The address of a tensor of that many values, or more; None: it is not there."""
        if tensor is None:
            return None
        place = _place(tensor, self.group.memory, what)
        values = place.rows * (place.row_bytes // 4)
        if place.kind != kind or values < count:
            raise ValueError(f"{what} is {values} values of {place.kind}, not {count} of {kind}")
        return place.address

    def _row_values(self) -> int:
        """Weights of a row."""
        return 1 if self.layout == "expert_major" else self.topk

    # ---- Calls ------------------------------------------------------------------------------------------------------

    def update(
        self,
        topk: Any,
        *,
        expert_counts: Any = None,
        expert_offsets: Any = None,
        rank_counts: Any = None,
        total: Any = None,
        stream: int = 0,
    ) -> None:
        """Takes the routing of a step: topk [tokens][topk], int32 or int64; -1: no expert. High throughput: the ranks
        exchange it, and what will arrive is counted in int32: rows of each local expert, where each expert's zone
        begins, rows from each rank, and [1], all rows."""
        place = _place(topk, self.group.memory, "topk")
        size = {"int32": 4, "int64": 8}.get(place.kind)
        if size is None or place.row_bytes != self.topk * size:
            raise ValueError(
                f"topk is rows of {place.row_bytes} bytes of {place.kind}, not of {self.topk} int32 or int64"
            )
        experts = self.group.experts // self.group.rank_count
        routing = _abi_ep.EpRouting(
            size=ctypes.sizeof(_abi_ep.EpRouting),
            topk=place.address,
            tokens=place.rows,
            topk_bytes=size,
            expert_counts=self._values(expert_counts, "int32", experts, "expert_counts"),
            expert_offsets=self._values(expert_offsets, "int32", experts, "expert_offsets"),
            rank_counts=self._values(rank_counts, "int32", self.group.rank_count, "rank_counts"),
            total=self._values(total, "int32", 1, "total"),
        )
        self._tokens = place.rows
        _check(lib.strait_ep_update(self._open(), byref(routing), stream), "update")

    _tokens = 0  # of the last update

    def _check_own(self, rows: int, what: str) -> None:
        if rows != self._tokens:
            raise ValueError(f"{what} has {rows} rows, the update had {self._tokens} tokens")

    def _peers(self, peers: Sequence[int] | None) -> Any:
        if peers is None:
            return None
        if len(peers) != self.group.rank_count:
            raise ValueError(f"peers has {len(peers)} addresses for {self.group.rank_count} ranks")
        return (ctypes.c_void_p * len(peers))(*peers)

    def _check_room(self, rows: int, what: str) -> None:
        """Low latency: a tensor of the layout has all of its slots."""
        if self.group.algorithm == "high_throughput":
            return
        least = self.group.rank_count * self.group.tokens_max
        if self.layout == "expert_major":
            least *= self.group.experts // self.group.rank_count
        if rows < least:
            raise ValueError(f"{what} has {rows} rows, not {least}")

    def dispatch(
        self,
        tokens: Any,
        out: Any,
        *,
        weights: Any = None,
        out_weights: Any = None,
        scales: Any = None,
        out_scales: Any = None,
        out_topk: Any = None,
        expert_counts: Any = None,
        rank_counts: Any = None,
        send_only: bool = False,
        global_ids: bool = False,
        peers: Sequence[int] | None = None,
        stream: int = 0,
    ) -> None:
        """Sends rows to the ranks of their experts. Outputs that are None are not wanted. send_only: complete()
        receives (low latency). peers (flat): the addresses of all ranks' `out` as this rank reaches them, in windows of
        NCCL or symmetric memory of PyTorch: rows go straight there. All ranks give them or none."""
        given, rows = self._rows(tokens, "tokens")
        self._check_own(rows, "tokens")
        received, room = self._rows(out, "out")
        given_scales, rows = self._rows(scales, "scales")
        if scales is not None:
            self._check_own(rows, "scales")
        made_scales, rows = self._rows(out_scales, "out_scales")
        if out_scales is not None and rows < room:
            raise ValueError(f"out_scales has {rows} rows, out has {room}")
        self._check_room(room, "out")
        each = self._row_values()
        arguments = _abi_ep.EpDispatchIn(
            size=ctypes.sizeof(_abi_ep.EpDispatchIn),
            tokens=given,
            weights=self._values(weights, "float32", self._tokens * self.topk, "weights"),
            scales=given_scales,
        )
        results = _abi_ep.EpDispatchOut(
            size=ctypes.sizeof(_abi_ep.EpDispatchOut),
            tokens=received,
            weights=self._values(out_weights, "float32", room * each, "out_weights"),
            scales=made_scales,
            topk=self._values(out_topk, "int32", room * self.topk, "out_topk"),
            expert_counts=self._values(
                expert_counts, "int32", self.group.experts // self.group.rank_count, "expert_counts"
            ),
            rank_counts=self._values(rank_counts, "int32", self.group.rank_count, "rank_counts"),
            rows=room,
            peers=self._peers(peers),
        )
        flags = send_only * _abi_ep.EP_FLAGS["send_only"] | global_ids * _abi_ep.EP_FLAGS["global_ids"]
        status = lib.strait_ep_dispatch(self._open(), byref(arguments), byref(results), flags, stream)
        _check(status, "dispatch")
        if send_only:
            self._kept = (tokens, out, weights, out_weights, scales, out_scales, out_topk, expert_counts, rank_counts)

    def combine(
        self,
        tokens: Any,
        out: Any,
        *,
        weights: Any = None,
        out_weights: Any = None,
        send_only: bool = False,
        peers: Sequence[int] | None = None,
        stream: int = 0,
    ) -> None:
        """Sends rows back and sums them into out [tokens]. High throughput: weights are gradients in the layout of the
        dispatch's out_weights, and out_weights [tokens][topk] becomes those of the dispatch's weights. Low latency,
        expert_major: out_weights is read: what experts' rows are multiplied with; None: the weights of the dispatch.
        peers: as in dispatch, of `tokens`, which the others read there."""
        given, room = self._rows(tokens, "tokens")
        self._check_room(room, "tokens")
        summed, rows = self._rows(out, "out")
        self._check_own(rows, "out")
        arguments = _abi_ep.EpCombineIn(
            size=ctypes.sizeof(_abi_ep.EpCombineIn),
            tokens=given,
            weights=self._values(weights, "float32", room * self._row_values(), "weights"),
            peers=self._peers(peers),
            rows=room,
        )
        results = _abi_ep.EpCombineOut(
            size=ctypes.sizeof(_abi_ep.EpCombineOut),
            tokens=summed,
            weights=self._values(out_weights, "float32", rows * self.topk, "out_weights"),
        )
        flags = send_only * _abi_ep.EP_FLAGS["send_only"]
        status = lib.strait_ep_combine(self._open(), byref(arguments), byref(results), flags, stream)
        _check(status, "combine")
        if send_only:
            self._kept = (tokens, out, weights, out_weights)

    def complete(self, stream: int = 0) -> None:
        """Receives what the last call with send_only began."""
        _check(lib.strait_ep_complete(self._open(), stream), "complete")
        self._kept = None

    def close(self) -> None:
        handle, self._handle = self._handle, None
        self.group._handles.discard(self)
        if handle is not None:
            lib.strait_ep_handle_destroy(handle)
