"""Pools of different layouts: pages are rearranged on the way. Every pair of layouts against a reference in numpy."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import TREE

import strait

try:
    from strait import service
except ImportError as failure:
    pytest.skip(f"libstrait.so: {failure}", allow_module_level=True)

from daemons import export, move, until, verdicts

from strait.service import EventType, Layout, Mismatch, Pages, Reason, Region, State

pytestmark = pytest.mark.skipif("STRAITD" not in os.environ, reason="STRAITD names no daemon")

LAYERS, HEADS, SIZE = 3, 4, 32  # of the model; values of a head
TOKENS = 72  # of a request: 5 pages of 16 tokens, the last one half full, or 2 of 64


def to_e4m3(values):
    """Towards zero; what is below the least normal is zero."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    size = ((bits >> 20) & 0x7FF).astype(np.int32) - ((127 - 7) << 3)
    return (bits >> 24 & 0x80).astype(np.uint8) | np.where(size < 8, 0, np.minimum(size, 0x7E)).astype(np.uint8)


class Type(NamedTuple):
    """A type of values, and those of a bell curve in it, as integers."""

    element: str
    dtype: type
    convert: Callable[[Any], Any]
    torch: str = "uint8"

    @property
    def sentinel(self):
        """What no value is."""
        return np.frombuffer(b"\x7f" * 8, self.dtype)[0]


TYPES = {
    "BF16": Type("bf16", np.uint16, lambda values: (values.view(np.uint32) >> 16).astype(np.uint16), "bfloat16"),
    "FP16": Type("fp16", np.uint16, lambda values: values.astype(np.float16).view(np.uint16), "float16"),
    "FP32": Type("fp32", np.uint32, lambda values: values.view(np.uint32), "float32"),
    "FP8 E4M3": Type("fp8_e4m3", np.uint8, to_e4m3),
    "FP8 E5M2": Type(
        "fp8_e5m2", np.uint8, lambda values: (values.astype(np.float16).view(np.uint16) >> 8).astype("u1")
    ),
    "INT8, FP4": Type("bytes", np.uint8, lambda values: np.clip(values * 40, -100, 100).astype(np.int8).view(np.uint8)),
}
BF16 = TYPES["BF16"]


class Side(NamedTuple):
    """How a worker holds the model's KV."""

    name: str
    tokens: int = 16  # of a page
    order: Layout = Layout.NHD
    heads: range = range(HEADS)
    layers: range = range(LAYERS)
    packed: bool = False  # K and V of a head in one row
    rows: bool = False  # the first axis of a page has gaps behind its rows
    blocks: bool = False  # a page of all layers lies together: [page, layer, ...]

    @property
    def pages(self) -> int:
        return -(-TOKENS // self.tokens)


SIDES = [
    Side("NHD of 16 tokens"),
    Side("NHD of 64", tokens=64),
    Side("NHD of 48", tokens=48),
    Side("HND of 16", order=Layout.HND),
    Side("HND of 64", tokens=64, order=Layout.HND),
    Side("packed NHD of 16", packed=True),
    Side("packed HND of 64", tokens=64, order=Layout.HND, packed=True),
    Side("NHD of 16, rows apart", rows=True),
    Side("HND of 64, rows apart", tokens=64, order=Layout.HND, rows=True),
    Side("NHD of 64, all layers of a page together", tokens=64, blocks=True),
    Side("NHD of 16, all layers of a page together, packed", blocks=True, packed=True),
]
COUNT = 12  # pages of a pool


def whole_model(seed, of=BF16):
    """KV of a request: [layer, K or V, token, head, value]."""
    shape = (LAYERS, 2, TOKENS, HEADS, SIZE)
    return of.convert(np.random.default_rng(seed).standard_normal(shape, np.float32))


class Worker:
    """A pool of a side: its memory as arrays [page, token, head, value] of each layer and role, in whichever order.

    On a GPU the arrays are a copy, which write() and check() bring there and back."""

    def __init__(self, place, side, of=BF16):
        self.client, self.side, self.gpu, self.sentinel = place.client, side, place.gpu, of.sentinel
        width = SIZE * (2 if side.packed else 1)
        page = (side.tokens, len(side.heads), width)
        if side.order == Layout.HND:
            page = (page[1], page[0], width)
        gap = 2 if side.rows else 1  # rows are at twice their distance
        roles = ["kv"] if side.packed else ["k", "v"]
        kinds = [(role, layer) for layer in side.layers for role in roles]
        stored = (page[0] * gap, *page[1:])
        axes = (COUNT, len(kinds)) if side.blocks else (len(kinds), COUNT)
        bytes_of_all = int(np.prod(axes) * np.prod(stored)) * np.dtype(of.dtype).itemsize
        raw = np.frombuffer(service.alloc(bytes_of_all), of.dtype)
        raw[:] = self.sentinel
        raw = self.whole = raw.reshape(*axes, *stored)
        self.tensor = self.gpu and self.gpu.tensor(raw, of.torch, place.device)
        self.raw = raw.swapaxes(0, 1) if side.blocks else raw
        self.gaps = self.raw[:, :, 1::2] if side.rows else self.raw[:, :0]
        regions = {}
        self.arrays = {}
        for number, (kind, array) in enumerate(zip(kinds, self.raw[:, :, ::gap])):
            part = (slice(None), number) if side.blocks else (number, slice(None))
            shown = array if side.order == Layout.NHD else array.swapaxes(1, 2)
            if side.packed:
                self.arrays["k", kind[1]], self.arrays["v", kind[1]] = shown[..., :SIZE], shown[..., SIZE:]
            else:
                self.arrays[kind] = shown
            regions[kind] = Region(
                array if self.tensor is None else self.tensor[(*part, slice(None, None, gap))],
                heads=len(side.heads),
                layout=side.order,
                tokens=side.tokens,
                head_first=side.heads.start,
                heads_total=HEADS,
            )
        self.pool = place.client.register(regions, element=of.element)

    def ids(self, shift=0):
        """Pages of a request, in no order."""
        return [(7 * page + 5 + shift) % COUNT for page in range(self.side.pages)]

    def write(self, model, ids):
        for (role, layer), array in self.arrays.items():
            values = model[layer, "kv".index(role)][:, self.side.heads.start : self.side.heads.stop]
            for token in range(TOKENS):
                array[ids[token // self.side.tokens], token % self.side.tokens] = values[token]
        if self.gpu:
            self.gpu.fill(self.tensor, self.whole)

    def read(self, layer, role, ids):
        """[token, head, value] of all pages."""
        return np.concatenate([self.arrays[role, layer][page] for page in ids])

    def check(self, model, ids, brought, begin=0):
        """The request's tokens from `begin` on are there; before them, behind what the source's pages bring, and
        elsewhere, nothing was written."""
        if self.gpu:
            self.whole[:] = self.gpu.values(self.tensor)
        for layer in self.side.layers:
            for kv, role in enumerate("kv"):
                have = self.read(layer, role, ids)
                want = model[layer, kv][:, self.side.heads.start : self.side.heads.stop]
                assert (have[begin:TOKENS] == want[begin:]).all(), (self.side.name, layer, role)
                assert (have[:begin] == self.sentinel).all(), (self.side.name, layer, role)
                assert (have[brought:] == self.sentinel).all(), (self.side.name, layer, role)
        others = [page for page in range(COUNT) if page not in ids]
        assert all((array[others] == self.sentinel).all() for array in self.arrays.values()), self.side.name
        assert (self.gaps == self.sentinel).all(), self.side.name
        self.raw[:] = self.sentinel
        if self.gpu:
            self.gpu.fill(self.tensor, self.whole)


def coded_as(client):
    """How many chunks this client's daemon has sent by each mode."""
    client.request_stats()
    said = until([client], lambda said: any(event.type == EventType.STATS for event in said))
    counters = json.loads(next(event.data for event in said if event.type == EventType.STATS))["counters"]
    return {name.removeprefix("chunks_sent_"): n for name, n in counters.items() if name.startswith("chunks_sent_")}


@pytest.mark.parametrize("name", TYPES)
def test_every_pair_of_layouts_of_each_type(places, name, request):
    source_place, sink_place = places
    clients, of = [place.client for place in places], TYPES[name]
    sources = [Worker(source_place, side, of) for side in SIDES]
    sinks = [Worker(sink_place, side, of) for side in SIDES]
    model = whole_model(seed=1, of=of)
    before, moved = coded_as(source_place.client), 0
    for source in sources:
        source.write(model, source.ids())
        peer = sink_place.client.import_peer(export(source))
        for number, sink in enumerate(sinks):
            key = f"{source.side.name} to {sink.side.name}, {name}"
            bits = sink.pool.mismatch(peer)
            assert bits == (Mismatch(0) if same(source.side, sink.side) else Mismatch.RESHAPED), key
            expectation = sink.pool.expect(key, sink.ids(number), deadline=20)
            offer = source.pool.offer(key, source.ids(), lease=20, last=True)
            expectation.start(peer)
            move(clients, [expectation], [offer])
            sink.check(model, sink.ids(number), brought=source.side.pages * source.side.tokens)
            moved += 1
    after, way = coded_as(source_place.client), request.node.callspec.params["places"]
    if way in DOCUMENTED:
        row = documented()[name]
        assert row[DOCUMENTED[way]] == str(moved), "docs/protocol.md, Pools of other layouts"
    if way in ("tcp", "ucx"):
        assert row[0] == "+".join(mode for mode in after if after[mode] > before[mode]), (before, after)
    for worker in sources + sinks:
        worker.pool.remove()


# Columns of the table in docs/protocol.md.
DOCUMENTED = {"one daemon": 1, "shm": 2, "tcp": 3, "ucx": 4, "one GPU": 5, "two GPUs": 6, "GPU to host": 7,
              "host to GPU": 8}  # fmt: skip


def documented():
    """Rows of that table, by type."""
    text = (TREE / "docs/protocol.md").read_text().split("### What has been moved")[1].split("\n## ")[0]
    assert ": " + "; ".join(side.name for side in SIDES) + "." in text
    text = text.split("### What is refused")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    assert [row[0] for row in rows] == list(TYPES)
    return {name: columns for name, *columns in rows}


def same(a, b):
    fields = lambda side: (side.tokens, side.order, side.heads, side.layers, side.packed, side.rows)  # noqa: E731
    return fields(a) == fields(b)


TWO = [Side(f"heads of rank {rank}", heads=range(2 * rank, 2 * rank + 2)) for rank in range(2)]
STAGES = [
    Side("layers of stage 0", layers=range(2), tokens=64),
    Side("layers of stage 1", layers=range(2, 3), tokens=64, order=Layout.HND),
]


@pytest.mark.parametrize(
    "froms, tos",
    [
        (TWO, [Side("all heads")]),
        ([Side("all heads, HND of 64", tokens=64, order=Layout.HND)], TWO),
        (STAGES, [Side("all layers")]),
        ([Side("all layers")], STAGES),
        (TWO, STAGES),
        ([Side(f"one head of {h}", heads=range(h, h + 1)) for h in range(4)], TWO),
    ],
    ids=lambda sides: " + ".join(side.name for side in sides),
)
def test_ranks_and_stages(places, froms, tos):
    source_place, sink_place = places
    clients = [place.client for place in places]
    sources, sinks = [Worker(source_place, side) for side in froms], [Worker(sink_place, side) for side in tos]
    model = whole_model(seed=2)
    meet = lambda a, b: set(a.heads) & set(b.heads) and set(a.layers) & set(b.layers)  # noqa: E731
    expectations, offers = [], []
    for number, sink in enumerate(sinks):
        count = sum(bool(meet(source.side, sink.side)) for source in sources)
        expectations.append(sink.pool.expect(f"r{number}", sink.ids(), deadline=20, sources=count))
    for number, source in enumerate(sources):
        source.write(model, source.ids())
        count = sum(bool(meet(source.side, sink.side)) for sink in sinks)
        offers.append(source.pool.offer(f"o{number}", source.ids(), lease=20, last=True, consumers=count))
        peer = sink_place.client.import_peer(export(source))
        for sink, expectation in zip(sinks, expectations):
            if meet(source.side, sink.side):
                expectation.start(peer, f"o{number}")
    move(clients, expectations, offers)
    for sink in sinks:
        sink.check(model, sink.ids(), brought=max(side.pages * side.tokens for side in froms))


def test_replicated_heads_come_from_either_rank(places):
    source_place, sink_place = places
    clients = [place.client for place in places]
    ranks = [Worker(source_place, Side(f"replica {n}", heads=range(1, 2))) for n in range(2)]
    sink = Worker(sink_place, Side("one head, HND of 64", heads=range(1, 2), tokens=64, order=Layout.HND))
    model = whole_model(seed=3)
    for n, rank in enumerate(ranks):
        rank.write(model, rank.ids())
        expectation = sink.pool.expect(f"r{n}", sink.ids(), deadline=20)
        offer = rank.pool.offer(f"r{n}", rank.ids(), lease=20, last=True)
        offer.start(source_place.client.import_peer(export(sink)))
        move(clients, [expectation], [offer])
        sink.check(model, sink.ids(), brought=80)


def begin_layers(places, tokens=0, **options):
    """An offer of no pages so far, its expectation, what is to land, and both workers."""
    source_place, sink_place = places
    source = Worker(source_place, Side("16"))
    sink = Worker(sink_place, Side("64, HND", tokens=64, order=Layout.HND))
    model = whole_model(seed=4)
    source.write(model, source.ids())
    expectation = sink.pool.expect("layers", sink.ids(), deadline=20, tokens=tokens, **options)
    offer = source.pool.offer("layers", lease=20)
    offer.start(source_place.client.import_peer(export(sink)))
    return offer, expectation, model, source, sink


def test_chunks_come_layer_by_layer(places):
    clients = [place.client for place in places]
    offer, expectation, model, source, sink = begin_layers(places)
    chunks = [Pages(source.ids()[:4]), Pages(source.ids()[4:], first=4)]
    for chunk in chunks:
        for layer in range(LAYERS):
            offer.append(chunk, layers=range(layer, layer + 1), last=(chunk, layer) == (chunks[1], LAYERS - 1))
    said = move(clients, [expectation], [offer])
    assert {event.layer for event in said if event.type == EventType.LAYER} == set(range(LAYERS))
    sink.check(model, sink.ids(), brought=80)


def test_layers_do_not_wait_for_the_end_where_the_tokens_are_known(places):
    clients = [place.client for place in places]
    offer, expectation, model, source, sink = begin_layers(places, tokens=TOKENS)
    for layer in range(LAYERS):  # whole layers; only with the last one does the offer end
        offer.append(source.ids(), layers=range(layer, layer + 1), last=layer == LAYERS - 1)
        said = until(clients, lambda said: any(event.type == EventType.LAYER for event in said))
        assert [event.layer for event in said if event.type == EventType.LAYER] == [layer]
    if expectation not in verdicts(said):
        move(clients, [expectation], [])
    sink.check(model, sink.ids(), brought=80)


def test_pages_are_whole_with_all_of_their_tiles(places):
    """Two pages of 64 tokens: the first is whole with the fourth of 16, the last with the end of the request."""
    clients = [place.client for place in places]
    offer, expectation, model, source, sink = begin_layers(places, TOKENS, tell_pages=True)
    told = lambda said: [id for event in said for pages in event.landed for id in pages.ids]  # noqa: E731
    offer.append(source.ids()[:3])
    offer.append(Pages(source.ids()[3:4], first=3), layers=range(LAYERS - 1))
    until(clients, lambda _: expectation.progress.state == State.TRANSFERRING)
    assert expectation.progress.pages_landed == 0
    offer.append(Pages(source.ids()[3:4], first=3), layers=range(LAYERS - 1, LAYERS))
    assert told(until(clients, told)) == sink.ids()[:1]
    offer.append(Pages(source.ids()[4:], first=4))
    assert told(until(clients, told)) == sink.ids()[1:]
    assert expectation.progress.state == State.TRANSFERRING
    offer.append(last=True)
    assert not told(move(clients, [expectation], [offer]))
    sink.check(model, sink.ids(), brought=80)


@pytest.mark.parametrize("pages", [4, 6])
def test_tokens_that_were_not_said_fail(places, pages):
    source_place, sink_place = places
    clients = [place.client for place in places]
    source, sink = Worker(source_place, Side("16")), Worker(sink_place, Side("64", tokens=64))
    expectation = sink.pool.expect(f"said {pages}", sink.ids(), deadline=20, tokens=TOKENS)
    ids = [*source.ids(), 11][:pages]
    offer = source.pool.offer(f"said {pages}", ids, lease=20, last=True)
    offer.start(source_place.client.import_peer(export(sink)))
    found = verdicts(until(clients, lambda said: expectation in verdicts(said)))[expectation]
    assert (found.state, found.reason) == (State.FAILED, Reason.GEOMETRY), found.text


def test_pages_are_read(places):
    source_place, sink_place = places
    clients = [place.client for place in places]
    source, sink = (
        Worker(source_place, Side("NHD")),
        Worker(sink_place, Side("HND of 2 heads", order=Layout.HND, heads=range(1, 3))),
    )
    model = whole_model(seed=5)
    source.write(model, source.ids())
    source.pool.serve()
    peer = sink_place.client.import_peer(export(source))
    read = sink.pool.read(peer, sink.ids(), source.ids(), deadline=20)
    found = verdicts(until(clients, lambda said: read in verdicts(said)))[read]
    assert found.state == State.DONE, (found.reason, found.text)
    sink.check(model, sink.ids(), brought=80)
    paged = Worker(sink_place, Side("of 64", tokens=64))
    with pytest.raises(strait.InvalidError):
        paged.pool.read(peer, paged.ids()[:1], source.ids()[:1], deadline=20)


def test_what_no_source_has_is_missing(places):
    source_place, sink_place = places
    clients = [place.client for place in places]
    rank, sink = Worker(source_place, TWO[0]), Worker(sink_place, Side("all heads, of 64", tokens=64))
    expectation = sink.pool.expect("half", sink.ids(), deadline=20)
    rank.pool.offer("half", rank.ids(), lease=20, last=True).start(source_place.client.import_peer(export(sink)))
    found = verdicts(until(clients, lambda said: expectation in verdicts(said)))[expectation]
    assert (found.state, found.reason) == (State.FAILED, Reason.GEOMETRY)
    assert "no source" in found.text and set(found.failed) == {(0, page) for page in sink.ids()}


def test_two_sources_of_the_same_heads_are_refused(places):
    source_place, sink_place = places
    clients = [place.client for place in places]
    sources = [Worker(source_place, TWO[0]), Worker(source_place, Side("heads 1 and 2", heads=range(1, 3)))]
    sink = Worker(sink_place, Side("all heads, of 64", tokens=64))
    expectation = sink.pool.expect("twice", sink.ids(), deadline=20, sources=2)
    for number, source in enumerate(sources):
        source.pool.offer(f"twice{number}", source.ids(), lease=20, last=True)
        expectation.start(sink_place.client.import_peer(export(source)), f"twice{number}")
    found = verdicts(until(clients, lambda said: expectation in verdicts(said)))[expectation]
    assert (found.state, found.reason) == (State.FAILED, Reason.GEOMETRY), found.text
    assert re.fullmatch(r"two sources have announced the same heads of layer 0 \(one: (0 to 1|1 to 2)\)", found.text)


@pytest.mark.parametrize("irregular", ["source", "sink"])
def test_pages_whose_tiles_have_no_one_distance_are_refused_by_name(places, irregular):
    """V's pages lie twice as far apart as K's, so that no numbers of tiles fit both."""
    clients = [place.client for place in places]

    def register(client, tokens, apart):
        regions = {}
        for role in "kv":
            step = 2 if apart and role == "v" else 1
            array = np.frombuffer(service.alloc(8 * step * tokens * SIZE * 2), np.uint16)
            array = array[: 8 * step * tokens * SIZE].reshape(8 * step, tokens, 1, SIZE)[::step]
            regions[role, 3] = Region(array, heads=1, layout=Layout.NHD, tokens=tokens, heads_total=1)
        return client.register(regions)

    source, sink = (
        register(client, 64 if side == irregular else 16, side == irregular)
        for client, side in zip(clients, ("source", "sink"))
    )
    expectation = sink.expect(f"no distance {irregular}", [1], deadline=20)
    offer = source.offer(f"no distance {irregular}", [1], lease=20, last=True)
    expectation.start(clients[1].import_peer(source.export(timeout=10)))
    found = verdicts(until(clients, lambda said: {expectation, offer} <= verdicts(said).keys()))
    said = found[expectation if irregular == "sink" else offer].text
    assert found[expectation].reason == Reason.GEOMETRY
    assert f"layer 3 of the pool at the {irregular}: its rows or pages lie so that" in said, said


def test_a_hole_before_the_end_is_missing(places):
    source_place, sink_place = places
    clients = [place.client for place in places]
    source, sink = Worker(source_place, Side("16")), Worker(sink_place, Side("64", tokens=64))
    expectation = sink.pool.expect("hole", sink.ids(), deadline=20)
    ids = source.ids()
    offer = source.pool.offer("hole", [Pages(ids[:2]), Pages(ids[3:], first=3)], lease=20, last=True)
    offer.start(source_place.client.import_peer(export(sink)))
    found = verdicts(until(clients, lambda said: expectation in verdicts(said)))[expectation]
    assert (found.state, found.reason) == (State.FAILED, Reason.GEOMETRY), found.text
    assert set(found.failed) == {(0, sink.ids()[0])}


WINDOWED = [side for side in SIDES if side.tokens == 64]


def land_window(places, key, side, froms, within=True, pages=range(2, 5), apart=0):
    """What comes of these pages of 16 tokens at a sink that expects them from the first on; each source lacks `apart`
    more of them than the one before."""
    source_place, sink_place = places
    sources, sink = [Worker(source_place, of) for of in froms], Worker(sink_place, side)
    model = whole_model(11)
    expectation = sink.pool.expect(key, sink.ids(), deadline=20, sources=len(froms), begins_within=within)
    offers = []
    for number, source in enumerate(sources):
        ids = source.ids()
        source.write(model, ids)
        parts = [Pages([ids[page]], first=page) for page in pages[number * apart :]]
        offers.append(source.pool.offer(f"{key} {number}", parts, lease=20, last=True))
        expectation.start(sink_place.client.import_peer(export(source)), f"{key} {number}")
    clients = [place.client for place in places]
    return verdicts(until(clients, lambda said: expectation in verdicts(said)))[expectation], model, sink


@pytest.mark.parametrize("side", WINDOWED, ids=[side.name for side in WINDOWED])
def test_a_window_begins_within_a_page(places, side):
    found, model, sink = land_window(places, f"window {side.name}", side, [Side("16")])
    assert found.state == State.DONE, found.text
    sink.check(model, sink.ids(), brought=80, begin=32)


def test_a_window_of_two_ranks_begins_within_a_page(places):
    found, model, sink = land_window(places, "window of two", Side("64", tokens=64), TWO, pages=range(1, 5))
    assert found.state == State.DONE, found.text
    sink.check(model, sink.ids(), brought=80, begin=16)


@pytest.mark.parametrize(
    "name, within, pages, missing",
    [
        ("not allowed", False, [2, 3, 4], 0),
        ("a hole in it", True, [1, 3, 4], 0),
        ("not in the first page", True, [4], 0),
    ],
)
def test_a_window_lacks_nothing_else(places, name, within, pages, missing):
    found, _, sink = land_window(places, name, Side("64", tokens=64), [Side("16")], within, pages)
    assert (found.state, found.reason) == (State.FAILED, Reason.GEOMETRY), found.text
    assert (0, sink.ids()[missing]) in set(found.failed)


def test_ranks_that_begin_differently_lack_tokens(places):
    found, _, sink = land_window(places, "uneven window", Side("64", tokens=64), TWO, pages=range(1, 5), apart=1)
    assert (found.state, found.reason) == (State.FAILED, Reason.GEOMETRY), found.text
    assert set(found.failed) == {(0, sink.ids()[0])}


def test_ranks_that_end_differently_lack_tokens(places):
    source_place, sink_place = places
    clients = [place.client for place in places]
    sources, sink = [Worker(source_place, side) for side in TWO], Worker(sink_place, Side("all, of 64", tokens=64))
    expectation = sink.pool.expect("uneven", sink.ids(), deadline=20, sources=2)
    for number, source in enumerate(sources):
        source.pool.offer(f"uneven{number}", source.ids()[: 5 - number], lease=20, last=True)
        expectation.start(sink_place.client.import_peer(export(source)), f"uneven{number}")
    found = verdicts(until(clients, lambda said: expectation in verdicts(said)))[expectation]
    assert (found.state, found.reason) == (State.FAILED, Reason.GEOMETRY), found.text
    assert set(found.failed) == {(0, sink.ids()[1])}


REFUSED = [
    (dict(layout=Layout.NONE), "the order of tokens and heads is not declared"),
    (dict(tokens=0), "tokens and heads do not divide the page, or are not declared"),
    (dict(heads_total=8), "other KV heads"),
    (dict(heads_total=0), "other KV heads"),
    (dict(element="fp16"), "fp16"),
    (dict(compat="another model"), "compatibility token"),
]


@pytest.mark.parametrize(
    "other, text",
    [
        ((1, 2), "heads 0 to 0 of 2 here, heads 1 to 1 of 2 there; the pools have no layer and head in common"),
        ((0, 4), "heads 0 to 0 of 2 here, heads 0 to 0 of 4 there; "),
        ((0, 0), "heads 0 to 0 of 2 here, heads not numbered there; "),
    ],
)
def test_pages_alike_of_other_heads_are_refused_by_name(places, other, text):
    client = places[1].client
    array = np.frombuffer(service.alloc(8 * 16 * SIZE * 2), np.uint16).reshape(8, 16, 1, SIZE)

    def register(first, total):
        region = Region(array, heads=1, layout=Layout.NHD, tokens=16, head_first=first, heads_total=total)
        return client.register({("k", 0): region})

    here = register(0, 2)
    peer = client.import_peer(register(*other).export(timeout=10))
    assert here.mismatch(peer) == Mismatch.LAYOUT
    assert text in here.explain(peer), here.explain(peer)
    with pytest.raises(strait.InvalidError, match="do not match"):
        here.expect(f"refused {text}", [1], deadline=10).start(peer)


@pytest.mark.parametrize("changes, text", REFUSED, ids=[text for _, text in REFUSED])
def test_what_does_not_fit_is_refused_by_name(places, changes, text):
    client = places[1].client
    array = np.frombuffer(service.alloc(8 * 64 * HEADS * SIZE * 2), np.uint16)
    own = Region(array.reshape(8, 64, HEADS, SIZE), heads=HEADS, layout=Layout.NHD, tokens=64, heads_total=HEADS)
    changes = dict(changes)
    compat = changes.pop("compat", "")
    half = (
        array.reshape(16, 2, 64, SIZE)[:8]
        if changes.get("heads_total", HEADS) != HEADS
        else array.reshape(8, HEADS, 64, SIZE)
    )
    other = Region(half, heads=half.shape[1], layout=Layout.HND, tokens=64, heads_total=HEADS)._replace(**changes)
    here = client.register({("k", 0): own})
    peer = client.import_peer(client.register({("k", 0): other}, compat=compat).export(timeout=10))
    assert here.mismatch(peer) & Mismatch.FATAL
    assert text in here.explain(peer), here.explain(peer)
    assert text in (TREE / "docs/protocol.md").read_text().split("### What is refused")[1].split("\n## ")[0]
    with pytest.raises(strait.InvalidError, match="do not match"):
        here.expect(f"refused {text}", [1], deadline=10).start(peer)
