"""What the two halves of the connector tell each other, and what engines tell each other in kv_transfer_params."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from .._parallel import Parallel, Rank

if TYPE_CHECKING:
    from vllm.v1.request import Request

NULL_BLOCK = 0  # vLLM's: stands for a block that is not kept, such as one outside of a sliding window

#: Blocks of one group that follow one another: (group, first logical index, block ids).
Run = tuple[int, int, list[int]]


def runs_of(group: int, ids: Sequence[int], begin: int, end: int) -> list[Run]:
    """The blocks [begin, end) of a request that are kept; ids: of all its blocks."""
    runs: list[Run] = []
    for index in range(begin, min(end, len(ids))):
        if ids[index] == NULL_BLOCK:
            continue
        if runs and runs[-1][1] + len(runs[-1][2]) == index:
            runs[-1][2].append(ids[index])
        else:
            runs.append((group, index, [ids[index]]))
    return runs


@dataclass
class Handshake(KVConnectorHandshakeMetadata):
    """A worker's pool, as peers import it, and what is in it."""

    blob: bytes
    heads: int  # of the model; 0: not declared
    layers: tuple[int, int]  # the first, and the number behind the last


@dataclass
class Prefill:
    """Blocks of a prefill that are complete with this step."""

    key: str
    runs: list[Run]
    first: bool
    final: bool  # there are no more
    by_layer: bool = False  # layers are ready one after another during the step, else all with its end
    trace: str = ""  # traceparent of the request, as its client sent it


@dataclass
class Load:
    """Blocks to be filled from another engine."""

    runs: list[Run]
    source: Source
    trace: str = ""
    tokens: int = 0  # of the prompt; 0: not known


@dataclass(frozen=True)
class Peer:
    """A request at another engine."""

    engine: str
    key: str
    pools: dict[str, str]  # by rank_name(): of each of its workers
    parallel: Parallel

    @classmethod
    def of(cls, params: dict[str, Any]) -> Peer | None:
        """What a decode engine was given; None: it is not usable."""
        engine, key, pools = (params.get(name) for name in ("remote_engine_id", "remote_request_id", "strait_pools"))
        parallel = Parallel.of(params.get("strait_parallel"))
        if not isinstance(engine, str) or not isinstance(key, str) or not key or not isinstance(pools, dict):
            return None
        if parallel is None or not all(isinstance(name, str) for name in pools):
            return None
        return cls(engine, key_of(key), pools, parallel)

    def params(self) -> dict[str, Any]:
        """The same for a router, in the form of vLLM's own connectors."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.engine,
            "remote_request_id": self.key,
            "strait_pools": self.pools,
            "strait_parallel": self.parallel.describe(),
        }


@dataclass(frozen=True)
class Source:
    """What is offered to this engine."""

    peer: Peer
    ranks: dict[str, list[str]]  # by rank_name() of this engine's workers: the peer's from which each takes
    consumers: dict[str, int] = field(default_factory=dict)  # by the peer's: how many of this engine's take from each
    spare: dict[str, list[str]] = field(default_factory=dict)  # as `ranks`: from which nobody takes, to be let go


def key_of(name: str) -> str:
    """A request's key: its name, or a hash of one that is too long, or has no UTF-8, as JSON allows it."""
    encoded = name.encode(errors="surrogatepass")
    is_key = len(encoded) <= _KEY_BYTES and encoded == name.encode(errors="replace")
    return name if is_key else hashlib.sha256(encoded).hexdigest()


_KEY_BYTES = 100  # a key may have 128: there is room for a suffix


def params_of(request: Request) -> dict[str, Any]:
    """A request's kv_transfer_params, which may be anything, as vLLM does not look at what its client sent."""
    params = request.kv_transfer_params
    return params if isinstance(params, dict) else {}


def rank_name(rank: Rank) -> str:
    return f"{rank.stage}.{rank.tensor}"


def pack_blob(blob: bytes) -> str:
    return base64.b64encode(zlib.compress(blob, 9)).decode()


BLOB_MAX = 1 << 20


def unpack_blob(text: str) -> bytes:
    """ValueError: it is none."""
    try:
        decoder = zlib.decompressobj()
        blob = decoder.decompress(base64.b64decode(text, validate=True), BLOB_MAX)
    except (TypeError, ValueError, zlib.error) as failure:
        raise ValueError(f"not the description of a pool: {failure}") from None
    if not decoder.eof:
        raise ValueError("the description of a pool is cut off or too long")
    return blob


@dataclass
class StraitMetadata(KVConnectorMetadata):
    """What the scheduler wants of the workers, by request where there is one."""

    prefills: dict[str, Prefill] = field(default_factory=dict)
    loads: dict[str, Load] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)  # their transfers are to be given up
    preempted: set[str] = field(default_factory=set)  # the same, before their blocks are written to again
    declined: list[Source] = field(default_factory=list)  # nothing of them will be loaded
    refused: list[str] = field(default_factory=list)  # keys: nothing will be offered under them
    idle: bool = False  # the step computes nothing: there is time to wait for transfers

    def __bool__(self) -> bool:
        return bool(self.prefills or self.loads or self.ended or self.preempted or self.declined or self.refused)


@dataclass
class WorkerMetadata(KVConnectorWorkerMetadata):
    """Offers whose blocks are on their way, so that some will soon be free."""

    moving: int = 0

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        assert isinstance(other, WorkerMetadata)
        return WorkerMetadata(max(self.moving, other.moving))
