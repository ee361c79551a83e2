"""Requests between ranks of SGLang: whatever happens, a request that succeeds has the pages of its source byte for
byte, each other one fails on both sides with a reason, and nothing stays held.

STRAITD names the daemon, and the libraries are found as by python/tests."""

import numpy as np
import pytest
import torch
from rig import (
    BOOTSTRAPPING,
    FAILED,
    PAGES,
    ROWS,
    SUCCESS,
    TRANSFERRING,
    WAITING,
    Bootstrap,
    Rank,
    failure_of,
    until,
)

STATE = (40, 4096)  # pages and bytes of the second kind of memory


@pytest.fixture(scope="module")
def bootstrap():
    bootstrap = Bootstrap()
    yield bootstrap
    bootstrap.stop()


@pytest.fixture(scope="module")
def pair(nodes, bootstrap):
    source = Rank(nodes.daemons[0], bootstrap.address, "prefill", seed=1, state=STATE)
    sink = Rank(nodes.daemons[1], bootstrap.address, "decode", state=STATE)
    yield source, sink
    source.close()
    sink.close()


def pages_of(chance, count, least=1):
    """Page 0 is SGLang's own."""
    return chance.permutation(np.arange(least, PAGES))[:count].astype(np.int32)


def polls(*parts):
    return tuple(part.poll() for part in parts)


def settle(sender, receiver, wanted, seconds=20.0):
    until(lambda: polls(sender, receiver) == wanted, seconds, f"{wanted}")


def test_forty_rooms_in_three_chunks(pair):
    source, sink = pair
    chance = np.random.default_rng(3)
    for room in range(1, 41):
        from_pages, to_pages, rows = pages_of(chance, 24), pages_of(chance, 24), chance.permutation(ROWS)[:2]
        states = chance.permutation(STATE[0])[:3], chance.permutation(STATE[0])[:3]
        source.fill_aux(rows[0], room)
        receiver, sender = sink.receiver(room), source.sender(room)
        assert polls(sender, receiver) == (BOOTSTRAPPING, WAITING)
        receiver.send_metadata(to_pages, rows[1], [states[1]], decode_prefix_len=32)
        until(lambda: sender.poll() == WAITING, what="the handshake")
        assert sender.pop_decode_prefix_len() == 32 and sender.pop_decode_prefix_len() == 0
        sender.init(24, rows[0])
        for chunk in range(3):
            sender.send(from_pages[8 * chunk : 8 * chunk + 8], [states[0]] if chunk == 2 else None)
            assert sender.poll() in (TRANSFERRING, SUCCESS)
        settle(sender, receiver, (SUCCESS, SUCCESS))
        assert torch.equal(sink.pages(to_pages), source.pages(from_pages))
        assert torch.equal(sink.state[states[1]], source.state[states[0]])
        assert sink.aux_row(rows[1]) == source.aux_row(rows[0])
        metric = sender.get_transfer_metric()
        assert metric.transfer_total_bytes == source.pages(from_pages).numel() + 3 * STATE[1]
        assert 0 < metric.transfer_latency_s < 20 and 0 < metric.alloc_latency_s < 20
        sender.clear()
        receiver.clear()
    nothing_left(source, sink)


def nothing_left(source, sink):
    for rank in (source, sink):
        manager = rank.manager
        until(lambda: not manager.strait._links, what="the end of all transfers")  # noqa: B023
        assert (
            not manager.links and not manager._senders and not manager._early and not manager.strait._client._transfers
        )
        assert not manager.request_status and not manager.failure_records
