"""The classes that SGLang makes of a transfer backend: manager, sender, receiver and bootstrap server.

A decode rank that has pages for a request expects them, and sends its prefill rank a Hello with the description of its
pool. The prefill rank offers the request to that pool at once, before it computes anything, so that from then on each
side hears of the other's end; chunks are appended as they are computed. The metadata buffers come with the verdict.

Threads: the scheduler's, one that follows the daemon (Endpoint), one that reads the control socket, one that sends what
may block. All that they share is changed under the endpoint's lock.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
import zmq
from numpy.typing import NDArray
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.disaggregation.base.conn import (
    KVArgs,
    KVPoll,
    KVTransferDestination,
    KVTransferMetric,
)
from sglang.srt.disaggregation.common.conn import (
    AbortNotification,
    CommonKVBootstrapServer,
    CommonKVManager,
    CommonKVReceiver,
    CommonKVSender,
    PrefillServerInfo,
)
from sglang.srt.disaggregation.pp_consensus_store import PPConsensusStore
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.distributed.utils import get_pp_indices
from sglang.srt.environ import envs
from sglang.srt.runtime_context import get_disagg, get_parallel, linear_attn_tp_size
from sglang.version import __version__ as sglang_version

from .._compat import compat_token
from .._parallel import Parallel
from ..errors import Error
from ..service import Event, Pages, Reason, State
from .endpoint import Endpoint, Link
from .messages import HELLO_TAG, STATUS_TAG, Hello, counts_of
from .regions import AuxBuffers, Share, groups_of, parts_of, regions_of, types_of_state

logger = logging.getLogger(__name__)

_AUX_MAX = 1 << 20  # STRAIT_AUX_BYTES_MAX
_BY_DECODE = "aborted by its decode rank"
_KNOWN_THERE = (Reason.PEER_ABORT, Reason.PEER_DOWN, Reason.ABORTED)  # the daemons tell the decode rank, if it lives
_REMEMBERED = 60.0  # seconds that a room of which one side has not heard yet, or which one side has given up, is kept


def model_of(server_args: Any) -> Any:
    """The model's configuration; None: it cannot be read."""
    try:
        return ModelConfig.from_server_args(server_args)
    except Exception as failure:
        logger.warning("strait: ranks meet only their likes, as the model's configuration cannot be read: %s", failure)
        return None


def state_of(model: Any) -> dict[int, str]:
    """Elements of the state of Mamba and its like, as types_of_state() has them; empty: there is none, or that is not
    told. The size says which buffer has which."""
    try:
        from sglang.srt.configs.hybrid_arch import mambaish_config  # which another release may not have

        config = mambaish_config(model)
        return {} if config is None else types_of_state(config.mamba2_cache_params)
    except Exception as failure:
        logger.warning("strait: state is moved as bytes, as its types cannot be read: %s", failure)
        return {}


def share_of(args: KVArgs, model: Any, is_mla: bool) -> Share:
    """From what both sides know: SGLang tells heads and layers to prefill ranks alone. model: of model_of()."""
    parallel = get_parallel()
    heads = 0 if model is None or getattr(args, "mla_compression_ratios", None) else 1
    if heads and not is_mla:
        heads = int(model.get_total_num_kv_heads())
    if heads and heads % parallel.attn_tp_size and parallel.attn_tp_size % heads:
        heads = 0
    first = 0 if model is None else get_pp_indices(int(model.num_hidden_layers), args.pp_rank, parallel.pp_size)[0]
    return Share(heads, parallel.attn_tp_size, parallel.attn_tp_rank, first)


def _are_tied(args: KVArgs, share: Share, is_mla: bool) -> tuple[bool, bool]:
    """Whether TP ranks, and pipeline stages, meet only their likes, because what is in their buffers is not told."""
    has_state, is_told = any(args.state_data_ptrs), share.heads != 0
    is_whole = is_told and len(set(args.kv_item_lens)) == 1 and args.kv_item_lens[0] % args.page_size == 0
    buffers = [(component, b) for component, every in enumerate(args.state_data_ptrs) for b in range(len(every))]
    is_divided = share.tensor == linear_attn_tp_size() and all(parts_of(args, *at, share, is_mla) for at in buffers)
    return not is_whole or (has_state and not is_mla and not is_divided), has_state or not is_told


def compat_of(args: KVArgs, server_args: Any, share: Share, is_mla: bool) -> str:
    """What must be equal at both ends besides the geometry of the pool."""
    parallel = get_parallel()
    tensor, pipeline = _are_tied(args, share, is_mla)
    described = [
        str(server_args.model_path).rstrip("/").rpartition("/")[2],
        str(getattr(server_args, "revision", None)),
        [str(args.kv_cache_dtype_str), str(args.kv_layout), str(args.swa_kv_cache_layout)],
        [kind.value for kind in args.state_types],
        [args.page_size] if any(args.state_data_ptrs) else [],
        [parallel.attn_tp_size, parallel.attn_tp_rank] if tensor else [],
        [parallel.pp_size, args.pp_rank] if pipeline else [],
        sglang_version.split(".")[:3],
    ]
    return compat_token(str(server_args.model_path), described)


def _refuse_unsupported() -> None:
    """ValueError: this engine does what Strait cannot serve."""
    parallel = get_parallel()
    wrong = {
        "attention context parallelism": parallel.attn_cp_size > 1,
        "decode context parallelism": parallel.attn_dcp_size > 1,
        "KV cache sharding": bool(parallel.enable_kv_cache_sharding),
        "layer split of the DSA cache": bool(parallel.enable_dsa_cache_layer_split),
        "the decode allocation policy prefill_complete": (
            get_disagg().disaggregation_decode_allocation_policy == "prefill_complete"
        ),
        "SGLANG_DISAGG_STAGING_BUFFER": bool(envs.SGLANG_DISAGG_STAGING_BUFFER.get()),
    }
    found = [name for name, is_on in wrong.items() if is_on]
    if found:
        raise ValueError(f"strait: the transfer backend does not support {', '.join(found)}")


class Expected(Link):
    """A receiver's transfer."""

    def __init__(self, room: int, told: Callable[[Link, Event], None]):
        super().__init__(room, told)
        self.key = f"{room}.{uuid.uuid4().hex}"  # a room may be used again


class StraitKVManager(CommonKVManager):
    """One for each rank. ValueError, RuntimeError: the engine cannot start like this, with the reason."""

    supports_deferred_decode_kv_release = True
    reports_transfer_latency = True
    kv_status_msg_tag = STATUS_TAG
    kv_status_msg_carries_reason = True
    enable_staging = False

    def __init__(
        self,
        args: KVArgs,
        disaggregation_mode: DisaggregationMode,
        server_args: Any,
        is_mla_backend: bool | None = False,
    ):
        _refuse_unsupported()
        self.aux = AuxBuffers(args.aux_data_ptrs, args.aux_data_lens, args.aux_item_lens)
        if self.aux.row_bytes > _AUX_MAX:
            raise ValueError(f"strait: metadata of {self.aux.row_bytes} bytes a request; the most is {_AUX_MAX}")
        model = model_of(server_args)
        types = state_of(model) if any(args.state_data_ptrs) else {}
        self.groups = groups_of(args, types)
        self.share = share_of(args, model, bool(is_mla_backend))
        try:
            regions = regions_of(args, bool(is_mla_backend), self.share, types)
        except ValueError as failure:
            raise ValueError(f"strait: the KV cache cannot be described: {failure}") from None
        self.tied = _are_tied(args, self.share, bool(is_mla_backend))
        self.strait = Endpoint(regions, compat_of(args, server_args, self.share, bool(is_mla_backend)))
        self.links: dict[int, Expected] = {}  # by room, decode: of receivers that are not cleared or not drained
        self._senders: dict[int, StraitKVSender] = {}
        self._early: dict[int, tuple[float, list[Hello]]] = {}  # of requests that this rank does not have yet
        self._given_up: dict[int, tuple[float, str]] = {}  # by senders, before their decode rank was heard of
        self._aborted: dict[int, float] = {}  # by decode ranks, before this rank had the request
        self._notices: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._refusals: dict[str, str] = {}  # by bootstrap address, decode: why that prefill cannot be used
        self._asked = ""
        self._stream: Any = None
        self._looked = 0.0
        self._closing = False
        try:
            super().__init__(args, disaggregation_mode, server_args, is_mla_backend)
        except BaseException:
            self.strait.close()
            raise
        self._threads = [
            threading.Thread(target=self._listen, name="strait-control", daemon=True),
            threading.Thread(target=self._notify, name="strait-notices", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        if disaggregation_mode == DisaggregationMode.DECODE:
            self._threads.append(self._start_heartbeat_checker_thread())

    @property
    def rank(self) -> str:
        return f"{self.pp_rank}.{self.attn_tp_rank}"

    def close(self) -> None:
        """Ends all transfers and the threads. RuntimeError: pages are still in use."""
        self._closing = True
        self._notices.put(None)
        if self.disaggregation_mode == DisaggregationMode.DECODE:
            self._heartbeat_shutdown.set()
        for thread in self._threads:
            thread.join()
        self.strait.close()
        if isinstance(self.request_status, PPConsensusStore):
            self.request_status.close()
        self._zmq_ctx.destroy(linger=0)

    # ---- The control socket

    def _listen(self) -> None:
        poller = zmq.Poller()
        poller.register(self.server_socket, zmq.POLLIN)
        is_prefill = self.disaggregation_mode == DisaggregationMode.PREFILL
        while not self._closing:
            self._forget_old()
            if not poller.poll(500):
                continue
            message = self.server_socket.recv_multipart()
            try:
                self._hear_decode(message) if is_prefill else self._hear_prefill(message)
            except Exception:  # a message of one request must not stop all others
                logger.exception("strait: a message of %d bytes could not be handled", sum(map(len, message)))

    def _hear_decode(self, message: list[bytes]) -> None:
        if message[0] == HELLO_TAG:
            self._greet(Hello.from_zmq(message))
        elif message[0] == b"ABORT":
            notification = AbortNotification.from_zmq(message)
            if notification is not None:
                self._aborted_by_decode(notification)
        else:
            logger.warning("strait: a message of an unknown kind, %r", message[0][:32])

    def _hear_prefill(self, message: list[bytes]) -> None:
        status = self.parse_kv_status_message(message)
        if status is not None:
            room, state, rank, reason = status
            self.apply_prefill_status(bootstrap_room=room, status=state, prefill_rank=rank, failure_reason=reason)

    def _notify(self) -> None:
        while (notice := self._notices.get()) is not None:
            notice()

    def _forget_old(self) -> None:
        """Rooms of which the other half never came."""
        now = time.monotonic()
        if now - self._looked < _REMEMBERED / 10:
            return
        self._looked = now
        waiting = max(_REMEMBERED, float(envs.SGLANG_DISAGGREGATION_WAITING_TIMEOUT.get()))
        with self.strait.lock:
            self._given_up = {room: it for room, it in self._given_up.items() if now - it[0] < _REMEMBERED}
            self._aborted = {room: since for room, since in self._aborted.items() if now - since < _REMEMBERED}
            self._early = {room: it for room, it in self._early.items() if now - it[0] < waiting}

    # ---- Prefill

    def _greet(self, hello: Hello) -> None:
        with self.strait.lock:
            self._aborted.pop(hello.room, None)
            sender, given_up = self._senders.get(hello.room), self._given_up.get(hello.room)
            if hello.required_dst_info_num == 1:
                self._given_up.pop(hello.room, None)
            if sender is not None:
                self._pair(sender, hello)
            elif given_up is not None:
                self.tell_failure(hello, given_up[1])
            else:
                others = self._early.pop(hello.room, (0.0, []))[1]
                others = [other for other in others if other.address != hello.address]
                self._early[hello.room] = (time.monotonic(), [*others, hello])

    def attach(self, sender: StraitKVSender) -> None:
        """A request begins here; its decode rank may have been heard of before."""
        room = sender.bootstrap_room
        with self.strait.lock:
            self._senders[room] = sender
            self._given_up.pop(room, None)
            early, aborted = self._early.pop(room, None), self._aborted.pop(room, None)
            if early is not None:
                for hello in early[1]:
                    self._pair(sender, hello)
            elif aborted is not None:
                self.fail(room, _BY_DECODE)

    def detach(self, sender: StraitKVSender, why: str) -> None:
        room = sender.bootstrap_room
        with self.strait.lock:
            if self._senders.get(room) is not sender:
                return
            del self._senders[room]
            if not sender.is_paired:
                self._given_up[room] = (time.monotonic(), why)

    def _why_not(self, sender: StraitKVSender, hello: Hello) -> str:
        if self.request_status.get(hello.room) == KVPoll.Failed:
            return "this request has failed already"
        if hello.aux != self.aux.items:
            return (
                f"metadata buffers differ, {self.aux.items} bytes here and {hello.aux} there: an option such as "
                "--disaggregation-enable-kv-checksum is set at one engine only"
            )
        if hello.decode_prefix_len % self.kv_args.page_size:
            return (
                f"the decode rank has {hello.decode_prefix_len} tokens already, which end inside of a page of "
                f"{self.kv_args.page_size} tokens"
            )
        if any(hello.ranks != other.ranks or hello.states != other.states for other in sender.hellos):
            return "its decode ranks say different things of it"
        return "" if hello.is_dummy else self.strait.why_not(hello.blob)

    def _pair(self, sender: StraitKVSender, hello: Hello) -> None:
        room = hello.room
        if sender.is_paired or any(hello.address == other.address for other in sender.hellos):
            self.tell_failure(hello, f"room {room} is in use by another request")
            return
        why = self._why_not(sender, hello)
        sender.greeted(hello)
        self.transfer_infos[room] = {hello.key: hello for hello in sender.hellos}
        self.resolve_kv_replica_factor(self.transfer_infos[room])
        if not why and not hello.is_dummy:
            try:
                self.strait.offer(sender.link, hello.key, hello.blob, hello.required_dst_info_num)
            except (Error, ValueError) as failure:
                why = f"the request cannot be offered: {failure}"
        if why:
            self.refuse(sender, why)
        elif sender.is_paired:
            self.req_to_decode_prefix_len[room] = hello.decode_prefix_len
            self.update_status(room, KVPoll.WaitingForInput)

    def brings_aux(self, hello: Hello) -> bool:
        """Of several prefill ranks one gives the metadata: of the last pipeline stage, the first."""
        tensor, stages = hello.ranks
        is_last = stages == self.pp_size or self.pp_rank == self.pp_size - 1
        return is_last and self.attn_tp_rank % max(1, self.attn_tp_size // tensor) == 0

    def refuse(self, sender: StraitKVSender, why: str) -> None:
        """Fails a request here and at its decode ranks, which are told why before the daemons tell them that."""
        self.fail(sender.bootstrap_room, why)
        for hello in sender.hellos:
            self.tell_failure(hello, why)
        self._notices.put(lambda: self.strait.abort(sender.link))

    def tell_failure(self, hello: Hello, why: str) -> None:
        reason = f"prefill rank {self.rank} at {self.local_ip}:{self.rank_port}: {why}"
        self._notices.put(
            lambda: self.send_kv_status_message(
                targets=[(hello.endpoint, hello.dst_port)],
                bootstrap_room=hello.room,
                status=KVPoll.Failed,
                failure_reason=reason,
            )
        )

    def _aborted_by_decode(self, notification: AbortNotification) -> None:
        room = notification.room
        with self.strait.lock:
            self._early.pop(room, None)
            sender = self._senders.get(room)
            if sender is None:
                self._aborted[room] = time.monotonic()
                return
            asked = (notification.decode_ip, notification.decode_port)
            known = [(hello.endpoint, hello.dst_port) for hello in sender.hellos]
            if sender.is_paired and None not in asked and asked not in known:
                return  # of an earlier request of that room
            if self.request_status.get(room) != KVPoll.Success:
                self.fail(room, _BY_DECODE)
                self.strait.abort(sender.link)

    def update_status(self, bootstrap_room: int, status: KVPoll) -> None:
        """The base reads what it has and writes the later of both: no verdict of another thread may come between."""
        with self.strait.lock:
            super().update_status(bootstrap_room, status)

    def fail(self, room: int, why: str) -> None:
        """The first reason is kept."""
        with self.failure_lock:
            self.failure_records.setdefault(room, why)
        self.update_status(room, KVPoll.Failed)

    def add_transfer_request(
        self,
        room: int,
        kv_indices: NDArray[np.int32],
        index_slice: slice,
        is_last_chunk: bool,
        aux_index: int | None = None,
        state_indices: list[Any] | None = None,
        wait_event: Any = None,
        **_: Any,
    ) -> None:
        """A chunk is ready, after `wait_event` if there is one. Called by the base's send()."""
        sender = self._senders.get(room)
        if sender is None or not sender.is_paired or self.request_status.get(room) == KVPoll.Failed:
            return
        if sender.is_idle:
            self.update_status(room, KVPoll.Success if is_last_chunk else KVPoll.Transferring)
            return
        pages = [Pages(kv_indices, first=index_slice.start)] if len(kv_indices) else []
        try:
            counts = counts_of(state_indices, len(self.groups))
            hello = sender.hellos[0]
            if is_last_chunk and counts != hello.states:
                raise ValueError(f"pages of state, {counts} here and {hello.states} at the decode rank")
            pages += self.state_pages(state_indices)
            is_aux_due = is_last_chunk and aux_index is not None and self.brings_aux(hello)
            aux = self.aux.read(aux_index) if is_aux_due and aux_index is not None else b""
            self.strait.append(sender.link, pages, is_last_chunk, aux, self._ready_event(wait_event))
        except (Error, TypeError, ValueError) as failure:
            self.refuse(sender, f"its pages cannot be sent: {failure}")
            return
        self.update_status(room, KVPoll.Transferring)

    def state_pages(self, state_indices: list[Any] | None) -> list[Pages]:
        """Pages of the groups of state. ValueError: of a component without buffers."""
        pages = []
        for component, indices in enumerate(state_indices or []):
            if indices is None or len(indices) == 0:
                continue
            groups = self.groups[component].values()
            if not groups:
                raise ValueError(f"there are no buffers of state {self.kv_args.state_types[component].value}")
            pages += [Pages(np.asarray(indices).reshape(-1), group=group) for group in groups]
        return pages

    def _ready_event(self, wait_event: Any) -> Any:
        """An event for the daemon behind one of this process."""
        if wait_event is None:
            return None
        if self._stream is None:
            self._stream = cast(Any, torch.cuda.Stream)(device=self.kv_args.gpu_id)
        ready: Any = cast(Any, torch.cuda.Event)(interprocess=True)
        self._stream.wait_event(wait_event)
        ready.record(self._stream)
        return ready

    # ---- Decode

    def try_ensure_parallel_info(self, bootstrap_addr: str) -> bool:
        self._asked = bootstrap_addr  # the base does not tell it on
        return bool(super().try_ensure_parallel_info(bootstrap_addr))

    def refusal(self, bootstrap_addr: str) -> str:
        """Why that prefill cannot be used; "": it can, as far as is known."""
        return self._refusals.get(bootstrap_addr, "")

    def _resolve_rank_mapping(self, info: PrefillServerInfo) -> None:
        """Ranks meet those that have their heads and layers; what does not fit is refused, request by request."""
        here = {"attention TP": self.attn_tp_size, "PP": self.pp_size}
        there = {"attention TP": info.attn_tp_size, "PP": info.pp_size}
        tensor, pipeline = self.tied
        divides = here["attention TP"] % there["attention TP"] == 0 or there["attention TP"] % here["attention TP"] == 0
        fits = {
            "attention TP": divides and (not tensor or here["attention TP"] == there["attention TP"]),
            "PP": here["PP"] == there["PP"] or (here["PP"] == 1 and not pipeline),
        }
        differ = [f"{name} {there[name]} at the prefill, {here[name]} here" for name in here if not fits[name]]
        if info.attn_cp_size != 1 or self.attn_cp_size != 1:
            differ.append(f"attention CP {info.attn_cp_size} at the prefill, {self.attn_cp_size} here")
        if info.enable_kv_cache_sharding or info.enable_dsa_cache_layer_split:
            differ.append("the prefill's cache is divided among its ranks")
        if differ:
            self._refusals[self._asked] = f"strait: ranks of the two sides do not fit together: {'; '.join(differ)}"
            return
        self._refusals.pop(self._asked, None)
        super()._resolve_rank_mapping(info)

    def real_ranks(self, info: PrefillServerInfo) -> list[int]:
        """Of the prefill's ranks that a request is told to, those from which pages come: others have the same heads."""
        ranks = list(info.target_tp_ranks or [])
        if self.share.heads == 0 or info.attn_tp_size == self.attn_tp_size:
            return ranks
        there = Parallel(self.share.heads, info.attn_tp_size, ((0, 1),))
        first = {there.heads_of(rank): rank for rank in reversed(ranks)}
        return sorted(first.values())

    def build_receiver_metadata_message(
        self,
        *,
        bootstrap_room: int,
        required_dst_info_num: int,
        kv_indices: NDArray[np.int32],
        aux_index: int | None,
        state_indices: list[Any] | None,
        decode_prefix_len: int | None,
        is_dummy: bool,
        device_kv_indices: NDArray[np.int32] | None = None,
    ) -> list[bytes]:
        return Hello(
            room=bootstrap_room,
            key=self.links[bootstrap_room].key,
            endpoint=self.local_ip,
            dst_port=self.rank_port,
            pages=len(kv_indices),
            states=counts_of(state_indices, len(self.groups)),
            aux=self.aux.items,
            decode_prefix_len=int(decode_prefix_len or 0),
            blob=self.strait.blob,
            page=int(self.kv_args.page_size),
            ranks=[self.attn_tp_size, self.pp_size],
            is_dummy=is_dummy,
            required_dst_info_num=required_dst_info_num,
        ).to_zmq()

    def is_abort_release_safe(self, bootstrap_room: int, required_acks: int) -> bool:
        """The own daemon tells when nothing is written any more; no acknowledgement of a prefill rank is needed."""
        return self.strait.is_drained(self.links.get(bootstrap_room))

    def clear_deferred_abort_state(self, bootstrap_room: int) -> None:
        super().clear_deferred_abort_state(bootstrap_room)
        self.links.pop(bootstrap_room, None)


def _failure_of(event: Event) -> str:
    return f"{event.reason.text}{': ' if event.text else ''}{event.text}"


class StraitKVSender(CommonKVSender):
    """A request at its prefill rank. The scheduler's thread calls it."""

    kv_mgr: StraitKVManager

    def __init__(
        self,
        mgr: StraitKVManager,
        bootstrap_addr: str,
        bootstrap_room: int,
        req_has_disagg_prefill_dp_rank: bool = False,
    ):
        self.hellos: list[Hello] = []  # from the decode ranks, of which each says how many there are
        self.link = Link(bootstrap_room, self._told)
        self._began, self._greeted_at, self._bytes = time.perf_counter(), 0.0, 0
        self._aborted: str | None = None  # why
        super().__init__(mgr, bootstrap_addr, bootstrap_room, req_has_disagg_prefill_dp_rank)
        mgr.attach(self)

    def greeted(self, hello: Hello) -> None:
        self.hellos.append(hello)
        self._greeted_at = time.perf_counter()

    @property
    def is_paired(self) -> bool:
        """All of its decode ranks have been heard of."""
        return bool(self.hellos) and len(self.hellos) >= self.hellos[0].required_dst_info_num

    @property
    def is_idle(self) -> bool:
        """Nothing is wanted of this rank."""
        return self.is_paired and all(hello.is_dummy for hello in self.hellos)

    def _told(self, link: Link, event: Event) -> None:
        if event.state == State.DONE:
            self.kv_mgr.update_status(self.bootstrap_room, KVPoll.Success)
        elif event.state == State.FAILED and self.bootstrap_room in self.kv_mgr.request_status:
            self.kv_mgr.fail(self.bootstrap_room, _failure_of(event))
            if event.reason not in _KNOWN_THERE:
                for hello in self.hellos:
                    self.kv_mgr.tell_failure(hello, _failure_of(event))

    def init(self, num_kv_indices: int, aux_index: int | None = None) -> None:
        super().init(num_kv_indices, aux_index)
        page = self.kv_mgr.kv_args.page_size
        for hello in self.hellos:
            if not hello.fits(num_kv_indices, page):
                why = f"{num_kv_indices} pages here, {hello.pages} at the decode rank"
                why += f", of {page} and {hello.page} tokens" if hello.page != page else ""
                self.kv_mgr.refuse(self, f"both sides have different pages of the prompt: {why}")
                return

    def _record_transfer_indices(self, kv_indices: NDArray[np.int32], state_indices: list[Any] | None) -> None:
        super()._record_transfer_indices(kv_indices, state_indices)
        args = self.kv_mgr.kv_args
        self._bytes += len(kv_indices) * sum(args.kv_item_lens)
        for indices, items in zip(state_indices or [], args.state_item_lens):
            self._bytes += len(indices) * sum(items) if indices is not None else 0

    def get_transfer_metric(self) -> KVTransferMetric:
        """Bytes before compression; from the first chunk to the verdict; from the request's begin here to the pages at
        the decode rank."""
        metric = self._transfer_metric
        metric.transfer_total_bytes = self._bytes
        if self.link.done_at and self._transfer_start_time is not None:
            metric.transfer_latency_s = self.link.done_at - self._transfer_start_time
        if self._greeted_at:
            metric.alloc_latency_s = self._greeted_at - self._began
        return metric

    def _end(self, why: str) -> None:
        """Nothing reads its pages any more when it returns."""
        self.kv_mgr.detach(self, why)
        if self.link.transfer is not None:
            self.kv_mgr.strait.fence(self.link)

    def abort(self) -> None:
        """Also of what the base keeps by room: SGLang does not clear what it aborts in its waiting queue."""
        manager, room = self.kv_mgr, self.bootstrap_room
        is_over = manager.request_status.get(room) == KVPoll.Success
        super().abort()
        if not is_over:
            self._end("aborted at its prefill rank")
        self._aborted = manager.failure_records.pop(room, None) or self._aborted
        for kept in (manager.request_status, manager.transfer_infos, manager.req_to_decode_prefix_len):
            kept.pop(room, None)

    def clear(self) -> None:
        why = self.kv_mgr.failure_records.get(self.bootstrap_room, "ended at its prefill rank")
        self._end(why)
        super().clear()

    def failure_exception(self) -> None:
        peer = ", ".join(hello.address for hello in self.hellos) or "that has not come"
        if self._aborted is not None:
            self.kv_mgr.record_failure(self.bootstrap_room, self._aborted)
        _name_failure(self.kv_mgr, self.bootstrap_room, f"decode rank {peer}")
        super().failure_exception()


def _name_failure(manager: StraitKVManager, room: int, peer: str) -> None:
    with manager.failure_lock:
        why = manager.failure_records.get(room)
        if why is not None:
            manager.failure_records[room] = f"room {room}, rank {manager.rank}, {peer}: {why}"


class StraitKVReceiver(CommonKVReceiver):
    """A request at its decode rank. The scheduler's thread calls it."""

    kv_mgr: StraitKVManager

    def __init__(self, mgr: StraitKVManager, bootstrap_addr: str, bootstrap_room: int | None = None):
        self.link: Expected | None = None
        self._aux_index: int | None = None
        super().__init__(mgr, bootstrap_addr, bootstrap_room)

    def _fail(self, why: str) -> None:
        self.kv_mgr.fail(self.bootstrap_room, why)
        self.conclude_state = KVPoll.Failed
        self.ensure_abort_notified()  # else the prefill rank waits for pages until its timeout

    def init(self, prefill_dp_rank: int) -> None:
        refusal = self.kv_mgr.refusal(self.bootstrap_addr)
        if refusal:
            self._fail(refusal)
            return
        super().init(prefill_dp_rank)

    def _setup_bootstrap_infos(self) -> None:
        super()._setup_bootstrap_infos()
        if self.bootstrap_infos is None:
            return
        real = self.kv_mgr.real_ranks(self.prefill_info)
        ranks = [rank for rank in self.target_tp_ranks for _ in self.target_pp_ranks]
        for rank, info in zip(ranks, self.bootstrap_infos):
            info["is_dummy"] = rank not in real

    def _register_kv_args(self) -> bool:
        """Each request says what there is to say."""
        return self.bootstrap_infos is not None

    def send_metadata(
        self,
        kv_indices: NDArray[np.int32],
        aux_index: int | None = None,
        state_indices: list[Any] | None = None,
        decode_prefix_len: int | None = None,
        destination: KVTransferDestination = KVTransferDestination.DEVICE,
        device_kv_indices: NDArray[np.int32] | None = None,
    ) -> None:
        if destination != KVTransferDestination.DEVICE or device_kv_indices is not None:
            raise NotImplementedError("strait: pages go to the registered pool only")
        manager = self.kv_mgr
        if self.conclude_state is not None or self.bootstrap_infos is None:
            return
        self._aux_index, link = aux_index, Expected(self.bootstrap_room, self._told)
        try:
            pages = [Pages(np.asarray(kv_indices))] if len(kv_indices) else []
            pages += manager.state_pages(state_indices)
            with manager.strait.lock:
                sources = sum(not info["is_dummy"] for info in self.bootstrap_infos)
                manager.strait.expect(link, link.key, pages, float(manager.waiting_timeout), sources)
                self.link = manager.links[self.bootstrap_room] = link
        except (Error, TypeError, ValueError) as failure:
            self._fail(f"its pages cannot be received: {failure}")
            return
        super().send_metadata(kv_indices, aux_index, state_indices, decode_prefix_len, destination)
        if self.conclude_state == KVPoll.Failed:
            manager.strait.abort(link)

    def _told(self, link: Link, event: Event) -> None:
        manager, room = self.kv_mgr, self.bootstrap_room
        if manager.links.get(room) is not link or room not in manager.request_status:
            return  # cleared; the room may be another request's by now
        if event.state == State.TRANSFERRING:
            manager.update_status(room, KVPoll.Transferring)
        elif event.state == State.FAILED:
            manager.fail(room, _failure_of(event))
        elif event.state == State.DONE and manager.request_status[room] != KVPoll.Failed:
            try:
                if self._aux_index is not None:
                    manager.aux.write(self._aux_index, event.data)
            except ValueError as failure:
                manager.fail(room, str(failure))
                return
            manager.update_status(room, KVPoll.Success)

    def poll(self) -> int:
        """FAILED only when nothing is written to its pages any more, unless SGLang itself waits for that."""
        status: int = super().poll()
        if status != KVPoll.Failed or self.link is None or self.kv_mgr.strait.is_drained(self.link):
            return status
        self.kv_mgr.strait.abort(self.link)
        return status if self.kv_mgr.enable_deferred_decode_kv_release else int(KVPoll.Transferring)

    def is_abort_release_safe(self) -> bool:
        return self.kv_mgr.strait.is_drained(self.link)

    def abort(self) -> None:
        super().abort()
        if self.link is not None:
            self.kv_mgr.strait.abort(self.link)

    def clear(self) -> None:
        """Nothing writes to its pages any more when it returns, unless SGLang itself waits for that."""
        link, manager = self.link, self.kv_mgr
        if link is not None and not manager.strait.is_drained(link):
            if manager.enable_deferred_decode_kv_release:
                manager.strait.abort(link)
            else:
                manager.strait.fence(link)
        super().clear()
        if link is not None and link.drained and manager.links.get(self.bootstrap_room) is link:
            del manager.links[self.bootstrap_room]

    def failure_exception(self) -> None:
        infos = getattr(self, "bootstrap_infos", None) or []
        ranks = ", ".join(f"{info['rank_ip']}:{info['rank_port']}" for info in infos)
        _name_failure(
            self.kv_mgr, self.bootstrap_room, f"prefill {self.bootstrap_addr}{' rank ' + ranks if ranks else ''}"
        )
        super().failure_exception()


class StraitKVBootstrapServer(CommonKVBootstrapServer):
    """SGLang's own, which does not hand out the prefill engine's page size: decode engines of other ones would stop."""

    @property
    def page_size(self) -> None:
        return None

    @page_size.setter
    def page_size(self, tokens: int | None) -> None:
        pass
