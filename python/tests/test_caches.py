"""Caches that are not K and V of equal layers: MLA's latents, in BF16 and in FP8 with scales beside, and hybrid models,
whose layers have pages of their own sizes, sliding windows, and states. Everything is compared byte by byte."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import HOST_WAYS

import strait

try:
    from strait import service
except ImportError as failure:
    pytest.skip(f"libstrait.so: {failure}", allow_module_level=True)

from daemons import export, move, until, verdicts

from strait.service import EventType, Layout, Mismatch, Pages, Reason, Region, State

pytestmark = [
    pytest.mark.skipif("STRAITD" not in os.environ, reason="STRAITD names no daemon"),
    pytest.mark.parametrize("places", HOST_WAYS, indirect=True),
]

TOKENS, WINDOW = 150, 64  # of a request; those before token 64 have left the sliding windows
COUNT = 12  # pages of a region
DTYPES = {"bf16": np.uint16, "fp32": np.uint32, "fp8_e4m3": np.uint8, "bytes": np.uint8}
SENTINEL = 0x5B  # in every byte that nothing was written to


class Part(NamedTuple):
    """A region: what it holds for each token, or of a request's state."""

    role: str
    layer: int
    width: int  # values of a head
    heads: range = range(1)
    total: int = 1
    tokens: int = 16  # of a page; 1: a state, of which a request has one page
    order: Layout = Layout.NHD
    group: int = 0
    element: str = "bf16"
    start: int = 0  # the first token that is there
    state: bool = False
    declared: bool = True

    @property
    def span(self):
        """Tokens of a request, or its state."""
        return range(1) if self.state else range(self.start, TOKENS)


def truths(parts):
    """What all heads of all parts hold: [token, head, value] by role and layer."""
    made = {}
    for part in parts:
        random = np.random.default_rng([ord(part.role[0]), part.layer])
        shape = (TOKENS, part.total, part.width)
        values = random.standard_normal(shape, np.float32)
        made[part.role, part.layer] = {
            "bf16": lambda v: (v.view(np.uint32) >> 16).astype(np.uint16),
            "fp32": lambda v: v.view(np.uint32),
        }.get(part.element, lambda v: (np.abs(v) * 50 % 120).astype(np.uint8))(values)
    return made


class Worker:
    """A pool of such parts, each an array of pages [token, head, value] or [head, token, value]."""

    def __init__(self, place, parts, compat=""):
        self.parts, self.memory = parts, {}
        regions = {}
        for part in parts:
            page = (part.tokens, len(part.heads), part.width)
            page = page if part.order == Layout.NHD else (page[1], page[0], page[2])
            dtype = DTYPES[part.element]
            array = np.frombuffer(service.alloc(COUNT * int(np.prod(page)) * np.dtype(dtype).itemsize), dtype)
            array = array[: COUNT * int(np.prod(page))].reshape(COUNT, *page)
            array.view(np.uint8)[:] = SENTINEL
            self.memory[part] = array
            said = dict(heads=len(part.heads), layout=part.order, tokens=part.tokens, head_first=part.heads.start,
                        heads_total=part.total)  # fmt: skip
            regions[part.role, part.layer] = Region(
                array, group=part.group, element=part.element, **(said if part.declared else {})
            )
        self.pool = place.client.register(regions, compat=compat)

    def lists(self, shift=0, groups=range(9)):
        """The request's pages of each of these groups, in no order."""
        found = {}
        for part in [part for part in self.parts if part.group in groups]:
            first, last = part.span[0] // part.tokens, part.span[-1] // part.tokens
            ids = [(7 * page + 3 + shift) % COUNT for page in range(last + 1 - first)]
            assert found.setdefault(part.group, Pages(ids, part.group, first)) == Pages(ids, part.group, first)
        return list(found.values())

    def filled(self, truth, lists):
        """What the memory has to hold with the request in these pages."""
        pages = {listed.group: listed for listed in lists}
        for part, array in self.memory.items():
            image = np.empty_like(array)
            image.view(np.uint8)[:] = SENTINEL
            listed = pages.get(part.group)
            for token in part.span if listed else ():
                page = image[listed.ids[token // part.tokens - listed.first]]
                page = page if part.order == Layout.NHD else page.swapaxes(0, 1)
                page[token % part.tokens] = truth[part.role, part.layer][token, part.heads.start : part.heads.stop]
            yield part, array, image

    def write(self, truth):
        for _, array, image in self.filled(truth, self.lists()):
            array[:] = image

    def check(self, truth, shift=0, groups=range(9)):
        for part, array, image in self.filled(truth, self.lists(shift, groups)):
            assert (array == image).all(), part
            array.view(np.uint8)[:] = SENTINEL


def bring(places, key, sources, sink, shift=0, groups=(), **options):
    """Moves a request from all these sources to the sink, at once; of each source these groups, without them all."""
    clients = [place.client for place in places]
    expectation = sink.pool.expect(key, sink.lists(shift), deadline=20, sources=len(sources), **options)
    offers = []
    for number, source in enumerate(sources):
        lists = source.lists(groups=groups[number] if groups else range(9))
        offers.append(source.pool.offer(f"{key} {number}", lists, lease=20, last=True))
        expectation.start(places[1].client.import_peer(export(source)), f"{key} {number}")
    return clients, expectation, offers


def moves(places, key, sources, sink, shift=0, groups=(), **options):
    clients, expectation, offers = bring(places, key, sources, sink, shift, groups, **options)
    return move(clients, [expectation], offers)


def fails(places, key, sources, sink):
    clients, expectation, _ = bring(places, key, sources, sink)
    found = verdicts(until(clients, lambda said: expectation in verdicts(said)))[expectation]
    assert (found.state, found.reason) == (State.FAILED, Reason.GEOMETRY), found.text
    return found.text


# ---- MLA ------------------------------------------------------------------------------------------------------------


def latents(variant, tokens, order=Layout.NHD):
    """One latent of 512 + 64 values for each token and layer; its FP8 with a scale for each 128 values, in a group of
    their own or, as bytes, behind the values."""
    same = dict(tokens=tokens, order=order)
    parts: list[Part] = []
    for layer in range(3):
        if variant == "BF16":
            parts.append(Part("kv", layer, 576, **same))
        elif variant == "FP8, scales beside":
            parts.append(Part("kv", layer, 576, element="fp8_e4m3", **same))
            parts.append(Part("other", layer, 5, element="fp32", group=1, **same))
        else:
            parts.append(Part("kv", layer, 512 + 4 * 4 + 2 * 64, element="bytes", **same))
    return parts


VARIANTS = ["BF16", "FP8, scales beside", "FP8, scales inside"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_latents_between_pages_of_all_sizes(places, variant):
    shapes = [(16, Layout.NHD), (64, Layout.NHD), (48, Layout.HND)]
    sides = [latents(variant, *shape) for shape in shapes]
    sources, sinks = ([Worker(place, side) for side in sides] for place in places)
    truth = truths(sides[0])
    for source in sources:
        source.write(truth)
        for number, sink in enumerate(sinks):
            alike = source.parts[0].tokens == sink.parts[0].tokens
            found = sink.pool.mismatch(places[1].client.import_peer(export(source)))
            assert found == (Mismatch(0) if alike else Mismatch.RESHAPED)
            moves(places, f"{variant} {sources.index(source)} {number}", [source], sink, number)
            sink.check(truth, number)


def test_every_rank_has_the_same_latents(places):
    ranks = [Worker(places[0], latents("FP8, scales beside", 16)) for _ in range(2)]
    sink = Worker(places[1], latents("FP8, scales beside", 64))
    truth = truths(sink.parts)
    for number, rank in enumerate(ranks):
        rank.write(truth)
        moves(places, f"rank {number}", [rank], sink)
        sink.check(truth)
    said = fails(places, "both ranks", ranks, sink)
    assert said == "a source has announced what is not expected, or what another one has announced"


# ---- Hybrid models --------------------------------------------------------------------------------------------------


def hybrid(full=16, window=16, order=Layout.NHD, heads=range(4), groups=(0, 1, 2, 3)):
    """Layers 0 and 3 attend to everything, 1 and 4 to a window, with heads of another size; 2 and 5 have a state: the
    SSM's in FP32, by heads, and the last inputs of a convolution in BF16, of which nothing is declared."""
    parts = []
    for layer in (0, 3):
        parts += [Part(r, layer, 64, heads, 4, full, order, groups[0]) for r in "kv"]
    for layer in (1, 4):
        parts += [Part(r, layer, 32, heads, 4, window, order, groups[1], start=WINDOW) for r in "kv"]
    for layer in (2, 5):
        parts.append(Part("other", layer, 16 * 32, heads, 4, 1, Layout.NHD, groups[2], "fp32", state=True))
        parts.append(Part("k", layer, 3 * 96, tokens=1, group=groups[3], state=True, declared=False))
    return parts


HYBRIDS = {
    "16 and 16": hybrid(),
    "64 and 32, HND": hybrid(64, 32, Layout.HND),
    "16 and 64, other groups": hybrid(16, 64, groups=(3, 0, 1, 2)),
}


@pytest.mark.parametrize("source", HYBRIDS)
@pytest.mark.parametrize("sink", HYBRIDS)
def test_hybrid_layers_between_unlike_workers(places, source, sink):
    sides = Worker(places[0], HYBRIDS[source]), Worker(places[1], HYBRIDS[sink])
    truth = truths(sides[0].parts)
    sides[0].write(truth)
    for turn in range(2):
        said = moves(places, f"{source} to {sink} {turn}", [sides[0]], sides[1], turn)
        sides[1].check(truth, turn)
    assert {event.layer for event in said if event.type == EventType.LAYER} <= set(range(6))


def test_ranks_of_a_hybrid_model_bring_their_heads(places):
    """States of heads as well: a page of one token is laid out like any other."""
    ranks = [
        Worker(places[0], [part for part in hybrid(heads=heads) if part.declared]) for heads in (range(2), range(2, 4))
    ]
    sink = Worker(places[1], [part for part in hybrid(64, 16, Layout.HND) if part.declared])
    truth = truths(sink.parts)
    for rank in ranks:
        rank.write(truth)
    moves(places, "two ranks", ranks, sink)
    sink.check(truth)


@pytest.mark.parametrize("bringer", range(2))
def test_what_all_ranks_have_comes_from_the_one_that_lists_it(places, bringer):
    """The convolution's inputs, group 3, are the same at both ranks, which have other heads of all else."""
    ranks = [Worker(places[0], hybrid(heads=heads)) for heads in (range(2), range(2, 4))]
    sink = Worker(places[1], hybrid(64, 16, Layout.HND))
    truth = truths(sink.parts)
    for rank in ranks:
        rank.write(truth)
    groups = [range(4) if number == bringer else range(3) for number in range(2)]
    moves(places, f"from rank {bringer}", ranks, sink, groups=groups)
    sink.check(truth)
    if bringer == 0:
        assert "two sources have announced the same pages of layer 2" in fails(places, "from both", ranks, sink)


@pytest.mark.parametrize("tokens, second", [(0, 16), (TOKENS, 48)])
def test_latents_of_all_ranks_beside_heads_of_each(places, tokens, second):
    """The latents' last page of 64 tokens ends behind what any rank has, and only the rank that brings them says so."""

    def side(tokens, heads):
        return latents("BF16", tokens) + [Part("k", 3, 64, heads, 4, tokens, group=1)]

    ranks = [Worker(places[0], side(16, range(2))), Worker(places[0], side(second, range(2, 4)))]
    sink = Worker(places[1], side(64, range(4)))
    truth = truths(sink.parts)
    for rank in ranks:
        rank.write(truth)
    for bringer in range(2):
        groups = [range(2) if number == bringer else (1,) for number in range(2)]
        moves(places, f"latents of rank {bringer}", ranks, sink, bringer, groups, tokens=tokens)
        sink.check(truth, bringer)


def test_a_state_that_no_source_has_is_missing(places):
    source = Worker(places[0], [part for part in hybrid(64) if part.group < 3])
    sink = Worker(places[1], hybrid())
    truth = truths(source.parts)
    source.write(truth)
    assert "no source" in fails(places, "no state", [source], sink)
    fewer = Worker(places[1], hybrid())
    expectation = fewer.pool.expect("without it", fewer.lists(groups=range(3)), deadline=20)
    offer = source.pool.offer("without it", source.lists(), lease=20, last=True)
    expectation.start(places[1].client.import_peer(export(source)))
    move([place.client for place in places], [expectation], [offer])
    fewer.check(truth, groups=range(3))


@pytest.mark.parametrize("here, there", [(16, 64), (64, 16), (64, 32)])
def test_groups_that_overlay_the_same_bytes(places, here, there):
    """As in vLLM's hybrid caches: both groups have all of the memory, and a request other ids of each."""
    clients = [place.client for place in places]

    def overlay(client, tokens):
        count = 256 // tokens
        array = np.frombuffer(service.alloc(2 * count * tokens * 32 * 2), np.uint16)[: 2 * count * tokens * 32]
        array = array.reshape(count, 2, tokens, 1, 32)
        regions = {
            (role, group): Region(array[:, i], group=group, heads=1, heads_total=1, layout=Layout.NHD, tokens=tokens)
            for group in range(2)
            for i, role in enumerate("kv")
        }
        lists = [Pages(list(range(group * count // 2, group * count // 2 + 64 // tokens)), group) for group in range(2)]
        return client.register(regions), array, lists

    (source, values, offered), (sink, found, expected) = (
        overlay(client, tokens) for client, tokens in zip(clients, (here, there))
    )
    values[:] = np.random.default_rng(1).integers(0, 1 << 16, values.shape, np.uint16)
    found[:] = 0
    expectation = sink.expect(f"overlay {here} {there}", expected, deadline=20)
    offer = source.offer(f"overlay {here} {there}", offered, lease=20, last=True)
    expectation.start(clients[1].import_peer(source.export(timeout=10)))
    move(clients, [expectation], [offer])
    rows = lambda array, pages: np.concatenate([array[i] for i in pages.ids], axis=1)  # noqa: E731
    for sent, came in zip(offered, expected):
        assert (rows(values, sent) == rows(found, came)).all()
    untouched = set(range(len(found))) - {i for pages in expected for i in pages.ids}
    assert not found[sorted(untouched)].any()


# ---- What does not fit ----------------------------------------------------------------------------------------------


def changed(parts, which, **fields):
    return [part._replace(**fields) if which(part) else part for part in parts]


def state(part):
    return part.state and part.element == "fp32"


def convolution(part):
    return not part.declared


def layer3(part):
    return part.layer == 3


REFUSED: dict[str, tuple[list[Part], list[Part], list[str]]] = {
    "latents of other widths": (
        latents("BF16", 16),
        changed(latents("BF16", 64), lambda part: True, width=512),
        ["a head has different sizes", "65536 bytes of bf16, 64 tokens", "18432 bytes of bf16, 16 tokens"],
    ),
    "latents of other types": (
        latents("BF16", 16),
        latents("FP8, scales beside", 16),
        ["group 0, layer 0, KV: bf16 here, fp8_e4m3 there", "pages of 18432 bytes here, 9216 there"],
    ),
    "scales of other granularity": (
        latents("FP8, scales beside", 16),
        changed(latents("FP8, scales beside", 64), lambda part: part.element == "fp32", width=1),
        ["a head has different sizes", "320 bytes of fp32, 16 tokens", "256 bytes of fp32, 64 tokens"],
    ),
    "states of other types": (
        hybrid(),
        changed(hybrid(64), state, element="bf16"),
        ["group 2, layer 2, other: fp32 here, bf16 there"],
    ),
    "states of other sizes": (
        hybrid(),
        changed(hybrid(64), convolution, width=3 * 48),
        ["layer 2, K: tokens and heads do not divide the page, or are not declared", "576 bytes", "288 bytes"],
    ),
    "layers of one group whose pages divide differently": (
        hybrid(),
        changed(hybrid(), lambda part: part.group == 0 and layer3(part), tokens=64),
        ["layer 3: 1 pages at the source are 4 at the sink, but not in other regions of their groups"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_with_both_descriptions(places, case):
    here, there, texts = REFUSED[case]
    sink, source = Worker(places[1], here), Worker(places[0], there)
    peer = places[1].client.import_peer(export(source))
    assert sink.pool.mismatch(peer) & Mismatch.FATAL
    said = sink.pool.explain(peer)
    assert all(text in said for text in texts), said
    ids = [Pages([1], group) for group in {part.group for part in sink.parts}]
    expectation: Any = sink.pool.expect(f"refused: {case}", ids, deadline=10)
    with pytest.raises(strait.InvalidError, match="do not match"):
        expectation.start(peer)
    expectation.abort()
