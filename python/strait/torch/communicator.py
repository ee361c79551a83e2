"""Communicators of libstrait-coll over process groups of torch, without a preload.

The library exports NCCL's functions and is called directly, by ctypes. What torch itself does with NCCL is not touched:
its process groups have communicators of their own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from ctypes import byref, c_int, c_void_p
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from .. import _nccl
from ..errors import CollectiveError

__all__ = ["Communicator", "close", "communicator_of"]

#: Types that sums are made of. What is gathered in any other type is moved as bytes.
TYPES = {
    torch.bfloat16: _nccl.Type.BF16,
    torch.float16: _nccl.Type.FP16,
    torch.float32: _nccl.Type.FP32,
}
_GATHERED = {**TYPES, torch.uint8: _nccl.Type.UINT8}  # uint8 may hold BF16


def reduction_of(op: Any, dtype: torch.dtype) -> _nccl.Reduction | None:
    """A sum or average of BF16, FP16 or FP32. None: another reduction, which is left to torch."""
    if dtype not in TYPES:
        return None
    if op == dist.ReduceOp.SUM:
        return _nccl.Reduction.SUM
    return _nccl.Reduction.AVG if op == dist.ReduceOp.AVG else None


class Gpu:
    """The current GPU of this process, its current stream, and a stream beside that."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise CollectiveError("there is no GPU: torch.cuda.is_available() is false")
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._side: Any = None

    def context(self) -> Any:
        return torch.cuda.device(self.device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def stream(self) -> int:
        """Address of torch's current stream."""
        address: int = torch.cuda.current_stream(self.device).cuda_stream
        return address

    @contextlib.contextmanager
    def beside(self, *tensors: torch.Tensor) -> Iterator[None]:
        """Within it the side stream is the current one, behind what the current one had before. The memory of the
        tensors is not used for others before the side stream is done with it."""
        if self._side is None:
            make: Any = torch.cuda.Stream
            self._side = make(self.device, priority=-1)
        self._side.wait_stream(torch.cuda.current_stream(self.device))
        try:
            with torch.cuda.stream(self._side):
                yield
        finally:  # also of what fails half-way
            for tensor in tensors:
                tensor.record_stream(self._side)

    def record(self) -> Any:
        """An event behind what the current stream has now."""
        return torch.cuda.current_stream(self.device).record_event()

    def wait(self, event: Any) -> None:
        """The current stream waits."""
        torch.cuda.current_stream(self.device).wait_event(event)

    def future(self) -> torch.futures.Future[torch.Tensor]:
        return torch.futures.Future(devices=[self.device])


class Communicator:
    """A rank's communicator of libstrait-coll, over the ranks of a process group (the default one: None) and this
    process's current GPU. All ranks of the group make it together; so it is made where all come by in the same order,
    and once: communicator_of() returns the one that there is.

    Collectives are queued on torch's current stream, and return. Ranks issue the same ones in the same order. close()
    ends the communicator, before the process ends.

    CollectiveError, on all ranks alike: a rank has no GPU, no libstrait-coll or no NCCL. Threads: calls must not
    overlap.
    """

    def __init__(self, group: Any = None):
        if not dist.is_initialized():
            raise CollectiveError("torch.distributed is not initialized: call init_process_group first")
        self.group: Any = dist.group.WORLD if group is None else group
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        if self.rank < 0:
            raise CollectiveError("this process is not a rank of the group")
        self._comm: c_void_p | None = None
        self._failure = ""
        self._lock = threading.Condition()  # of _calls and of _comm's end; a signal's handler may take it once more
        self._calls = 0  # that have _comm
        self._handles: list[tuple[int, int, c_void_p, Any]] = []
        unique_id = self._agree()
        self._library, comm = _nccl.library(), c_void_p()
        with self.gpu.context():
            result = self._library.ncclCommInitRank(byref(comm), self.size, unique_id, self.rank)
        _nccl.check(result, "ncclCommInitRank")
        self._comm = comm
        _watch.add(self)

    def _agree(self) -> _nccl.UniqueId:
        """Whether every rank has what it takes, and rank 0's id. A rank that lacks something tells the others, which
        would wait for it in ncclCommInitRank."""
        unique_id, trouble = _nccl.UniqueId(), ""
        try:
            self.gpu = Gpu()
            self.nccl_path, self.nccl_version = _nccl.nccl()
            if self.rank == 0:
                _nccl.check(_nccl.library().ncclGetUniqueId(byref(unique_id)), "ncclGetUniqueId")
        except Exception as failure:  # whatever it is, as of CUDA: the others are waiting
            trouble = str(failure) or type(failure).__name__
        told: list[Any] = [None] * self.size
        dist.all_gather_object(told, (trouble, bytes(unique_id)), group=self.group)
        troubles = [f"rank {rank}: {text}" for rank, (text, _) in enumerate(told) if text]
        if troubles:
            raise CollectiveError("\n".join(troubles))
        return _nccl.UniqueId.from_buffer_copy(told[0][1])

    # ---- Collectives ------------------------------------------------------------------------------------------------

    def all_gather(self, output: torch.Tensor, input: torch.Tensor) -> None:
        """Every rank's input, by rank. In place if input is this rank's part of output."""
        self._check(output, input)
        if output.numel() != self.size * input.numel():
            raise ValueError(f"all_gather: {output.numel()} values for {self.size} times {input.numel()}")
        kind, count = _GATHERED.get(input.dtype), input.numel()
        if kind is None:
            kind, count = _nccl.Type.INT8, count * input.element_size()
        self._call("ncclAllGather", input.data_ptr(), output.data_ptr(), count, kind)

    def reduce_scatter(self, output: torch.Tensor, input: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> None:
        """Sum or average of this rank's part of every rank's input: BF16, FP16 or FP32."""
        self._check(output, input)
        if input.numel() != self.size * output.numel():
            raise ValueError(f"reduce_scatter: {input.numel()} values for {self.size} times {output.numel()}")
        kind, reduction = self._kind(input, op)
        self._call("ncclReduceScatter", input.data_ptr(), output.data_ptr(), output.numel(), kind, reduction)

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> None:
        """Sum or average, in place: BF16, FP16 or FP32."""
        self._check(tensor, tensor)
        kind, reduction = self._kind(tensor, op)
        self._call("ncclAllReduce", tensor.data_ptr(), tensor.data_ptr(), tensor.numel(), kind, reduction)

    def _kind(self, tensor: torch.Tensor, op: Any) -> tuple[_nccl.Type, _nccl.Reduction]:
        reduction = reduction_of(op, tensor.dtype)
        if reduction is None:
            raise ValueError(f"{op} of {tensor.dtype}: only sums and averages of BF16, FP16 and FP32")
        return TYPES[tensor.dtype], reduction

    def _check(self, output: torch.Tensor, input: torch.Tensor) -> None:
        for tensor in (output, input):
            if tensor.device != self.gpu.device:
                raise ValueError(
                    f"a tensor is on {tensor.device}, this communicator's are on {self.gpu.device}: strait.torch moves"
                    " tensors of GPUs alone"
                )
            if not tensor.is_contiguous():
                raise ValueError("a tensor is not contiguous")
        if output.dtype != input.dtype:
            raise ValueError(f"types differ: {output.dtype} and {input.dtype}")

    def _call(self, function: str, *arguments: Any) -> None:
        self.check()
        with self._held() as comm:
            result = getattr(self._library, function)(*arguments, comm, self.gpu.stream())
            if result != 0:
                self._open()  # watch() has aborted it
            _nccl.check(result, function, comm)

    @contextlib.contextmanager
    def _held(self) -> Iterator[c_void_p]:
        """The handle, which watch() does not end under a call that is on its way into NCCL."""
        with self._lock:
            comm = self._open()
            self._calls += 1
        try:
            yield comm
        finally:
            with self._lock:
                self._calls -= 1
                self._lock.notify_all()

    def _open(self) -> c_void_p:
        comm = self._comm
        if comm is None:
            raise CollectiveError(self._failure or "the communicator is closed")
        return comm

    # ---- State ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """CollectiveError: the communicator has failed, as when another rank has died. Every call asks this too."""
        with self._held() as comm:
            self._check_handle(comm)

    def _check_handle(self, comm: c_void_p) -> None:
        error = c_int()
        _nccl.check(self._library.ncclCommGetAsyncError(comm, byref(error)), "ncclCommGetAsyncError", comm)
        if error.value != _nccl.IN_PROGRESS:
            _nccl.check(error.value, "the communicator has failed", comm)

    def watch(self) -> None:
        """Aborts the communicator if it has failed: the GPU stops waiting for a rank that is no more, and the next call
        raises. What was under way is lost. A call that has the handle is waited for, until it must have come into NCCL:
        there it may wait for ever, and an abort is safe and ends it."""
        try:
            self.check()
            return
        except CollectiveError as failure:
            text = str(failure)
        with self._lock:
            if self._comm is None:  # closed
                return
            self._failure = text
            comm, self._comm = self._comm, None
            self._lock.wait_for(lambda: self._calls == 0, _ENTRY_S)
        print(f"strait.torch: rank {self.rank} of {self.size}: {self._failure}", file=sys.stderr, flush=True)
        self._library.ncclCommAbort(comm)

    def report(self) -> str:
        """What was moved, and what of it compressed: a text for people (docs/collectives.md, "The report")."""
        with self._held() as comm:
            return _nccl.report(comm)

    def is_registered(self, address: int | None = None) -> bool:
        """Whether an address lies in memory of register(); without it, whether there is any."""
        return any(address is None or begin <= address < end for begin, end, _, _ in self._handles)

    def register(self, address: int, size: int, owner: Any) -> None:
        """ncclCommRegister, until close(). owner: kept until then, as its memory is."""
        handle = c_void_p()
        with self._held() as comm:
            result = self._library.ncclCommRegister(comm, address, size, byref(handle))
            _nccl.check(result, "ncclCommRegister", comm)
        self._handles.append((address, address + size, handle, owner))

    def close(self) -> None:
        """Waits for the GPU and ends the communicator. No graph that was captured with it may be left."""
        if self._comm is not None:
            with self.gpu.context():
                self.gpu.synchronize()  # if a rank has died: until watch() has aborted
        with self._lock:
            comm, self._comm = self._comm, None
            self._lock.wait_for(lambda: self._calls == 0, _ENTRY_S)  # of watch()
        if _communicators.get(self.group) is self:
            del _communicators[self.group]
        if comm is None:
            return
        with self.gpu.context():
            for _, _, handle, _ in self._handles:
                self._library.ncclCommDeregister(comm, handle)
            self._handles = []
            _nccl.check(self._library.ncclCommDestroy(comm), "ncclCommDestroy")

    def _forget(self, why: str) -> None:
        """In a forked child: what the communicator has is left as it is, and the next call raises."""
        self._comm, self._failure = None, why
        self._lock, self._calls = threading.Condition(), 0

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:  # else the other ranks may be waiting, and are told when this process ends
            self.close()


# ---- Those of this process ------------------------------------------------------------------------------------------

_WATCH_S = 1.0
_ENTRY_S = 1.0  # in which a call that has the handle of a communicator comes into NCCL


class Watch:
    """A thread that watches communicators, as torch's watchdog does with its own: one for the process."""

    def __init__(self) -> None:
        self._watched: weakref.WeakSet[Communicator] = weakref.WeakSet()
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, communicator: Communicator) -> None:
        with self._lock:
            self._watched.add(communicator)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="strait-watch", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(_WATCH_S):
            with self._lock:
                watched = list(self._watched)
            for communicator in watched:
                communicator.watch()
            del watched

    def all(self) -> list[Communicator]:
        return list(self._watched)

    def end(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(timeout=5)


_watch = Watch()
_communicators: dict[Any, Communicator] = {}
_lock = threading.RLock()


def communicator_of(group: Any = None) -> Communicator:
    """The communicator of a process group. The first call makes it, on all ranks of the group together."""
    key = dist.group.WORLD if group is None and dist.is_initialized() else group
    found = _communicators.get(key)
    if found is None:
        with _lock:
            found = _communicators.get(key) or Communicator(group)
            _communicators[key] = found
    return found


def close() -> None:
    """Closes all that communicator_of() has made: call it before destroy_process_group(). Of several that fail, the
    first failure is raised, when all have been closed."""
    failures = []
    for communicator in list(_communicators.values()):
        try:
            communicator.close()
        except Exception as failure:
            failures.append(failure)
    if failures:
        raise failures[0]


def _forget_in_child() -> None:
    """A forked child may neither use the communicators of its parent nor end them; its own are watched anew."""
    global _watch, _lock
    for communicator in _watch.all():
        communicator._forget("the communicator is of the process that has forked this one")
    _communicators.clear()
    _watch, _lock = Watch(), threading.RLock()


os.register_at_fork(after_in_child=_forget_in_child)


@atexit.register
def _close_at_exit() -> None:
    """A process that ends by an exception leaves its communicators as they are: its end is then told to the other
    ranks, which may be waiting for it."""
    if not hasattr(sys, "last_type"):
        close()
    _watch.end()
