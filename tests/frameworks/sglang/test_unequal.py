"""Engines of other attention TP, page sizes and pipeline stages: each sink has the tokens of all of its heads and
layers, byte for byte."""

import numpy as np
import pytest
from rig import (
    FAILED,
    LAYERS,
    PAGE,
    SIZE,
    SUCCESS,
    TOTAL_HEADS,
    WAITING,
    Bootstrap,
    Divided,
    Rank,
    failure_of,
    until,
)

TOKENS = 150  # of a prompt; the last page of each engine is filled in part
STATE = (40, 4096)


class Engine:
    """All ranks of one side. heads: of the model; of MLA there is one, which all ranks have."""

    def __init__(self, node, bootstrap, mode, tensor=1, stages=1, page=16, kind="mha", **more):
        self.tensor, self.stages, self.page, self.is_mla = tensor, stages, page, kind == "mla"
        self.heads = 1 if self.is_mla else max(1, TOTAL_HEADS // tensor)
        self.layers = LAYERS // stages // (2 if kind == "swa" else 1)  # of KV that is kept whole, in a rank
        seed = 0 if mode == "prefill" else None
        self.ranks = [
            Rank(
                node,
                bootstrap,
                mode,
                rank=rank,
                ranks=tensor,
                stage=stage,
                stages=stages,
                page=page,
                seed=seed,
                kind=kind,
                heads=self.heads,
                layers=LAYERS // stages,
                **more,
            )
            for stage in range(stages)
            for rank in range(tensor)
        ]
        self.pages = -(-TOKENS // page)
        count = min(len(buffer) for rank in self.ranks for buffer in rank.of_kv(rank.manager.kv_args))
        self.ids = np.random.default_rng(len(mode) + page).permutation(np.arange(1, count))[: self.pages]
        self.ids = self.ids.astype(np.int32)

    def place(self, number):
        """Tensor rank and stage of a rank by its number."""
        return number % self.tensor, number // self.tensor

    def first_head(self, tensor):
        return 0 if self.is_mla else tensor * TOTAL_HEADS // self.tensor

    def values(self, number):
        """The prompt as a rank has it: [role and layer, token, head, bytes]."""
        rank = self.ranks[number]
        buffers = [buffer[self.ids] for buffer in rank.of_kv(rank.manager.kv_args)]
        shape = (self.pages * self.page, self.heads, -1)
        return [buffer.reshape(shape)[:TOKENS] for buffer in buffers]

    def fill(self, chance):
        """The same model in all ranks, wherever they have a part of it."""
        heads, roles = (1, 1) if self.is_mla else (TOTAL_HEADS, 2)
        size = self.ranks[0].of_kv(self.ranks[0].manager.kv_args)[0].shape[1] // self.page // self.heads
        model = chance.integers(0, 256, (roles, LAYERS, TOKENS, heads, size), dtype=np.uint8)
        self.each(model, lambda page, part: page.__setitem__(slice(None), part))
        return model

    def each(self, model, visit):
        """Calls visit(bytes of a token in a rank's page, those of the model) for all of the prompt."""
        layers = self.layers
        for number, rank in enumerate(self.ranks):
            tensor, stage = self.place(number)
            heads = slice(self.first_head(tensor), self.first_head(tensor) + self.heads)
            buffers = rank.of_kv(rank.manager.kv_args)
            for place, buffer in enumerate(buffers):
                role, layer = divmod(place, layers)
                part = model[role, stage * layers + layer][:, heads].reshape(TOKENS, -1)
                for token in range(TOKENS):
                    page = buffer[self.ids[token // self.page]].reshape(self.page, -1)
                    visit(page[token % self.page], part[token])

    def close(self):
        for rank in self.ranks:
            until(rank.is_empty, what="the end of all that is held")
            rank.close()


class Request:
    def __init__(self, prefill, decode, number, row=3):
        self.prefill, self.decode, self.row = prefill, decode, row
        self.receivers = [rank.receiver(number) for rank in decode.ranks]
        for rank in prefill.ranks:
            rank.fill_aux(row, number)
        self.senders = [rank.sender(number) for rank in prefill.ranks]

    def tell(self, prefix=0, states=None):
        for receiver in self.receivers:
            receiver.send_metadata(self.decode.ids, self.row + 1, states, decode_prefix_len=prefix)
        return self

    def send(self, states=None):
        """In two chunks, of which the first ends with a page of the source's."""
        until(lambda: all(sender.poll() == WAITING for sender in self.senders), what="the handshake")
        ids, half = self.prefill.ids, self.prefill.pages // 2
        for sender in self.senders:
            sender.init(len(ids), self.row)
            sender.send(ids[:half], None)
            sender.send(ids[half:], states)
        return self

    def ends(self, wanted):
        parts = [*self.senders, *self.receivers]
        until(lambda: all(part.poll() == wanted for part in parts), what=f"the state {wanted}")

    def clear(self):
        for part in (*self.senders, *self.receivers):
            part.clear()


@pytest.fixture
def bootstrap():
    bootstrap = Bootstrap()
    yield bootstrap
    bootstrap.stop()


CASES = {
    "1 rank to 2": ({}, {"tensor": 2}),
    "2 ranks to 1": ({"tensor": 2}, {}),
    "1 rank to 4": ({}, {"tensor": 4}),
    "4 ranks to 2": ({"tensor": 4}, {"tensor": 2}),
    "8 ranks, two of each head, to 2": ({"tensor": 8}, {"tensor": 2}),
    "2 ranks to 8, two of each head": ({"tensor": 2}, {"tensor": 8}),
    "pages of 16 to 64": ({}, {"page": 64}),
    "pages of 64 to 16": ({"page": 64}, {}),
    "2 ranks, pages of 64, to 1 of 16": ({"tensor": 2, "page": 64}, {}),
    "2 stages to 1": ({"stages": 2}, {}),
    "2 stages of 2 ranks to 1 rank of 32": ({"stages": 2, "tensor": 2}, {"page": 32}),
    "2 stages on each side, of 1 rank and 2": ({"stages": 2}, {"stages": 2, "tensor": 2}),
    "MLA, 4 ranks to 2": ({"tensor": 4, "kind": "mla"}, {"tensor": 2, "kind": "mla"}),
    "MLA, 1 rank to 2 of pages of 64": ({"kind": "mla"}, {"tensor": 2, "page": 64, "kind": "mla"}),
}


@pytest.mark.parametrize("case", CASES)
def test_pages_arrive(nodes, bootstrap, case):
    of_prefill, of_decode = CASES[case]
    prefill = Engine(nodes.daemons[0], bootstrap.address, "prefill", **of_prefill)
    decode = Engine(nodes.daemons[1], bootstrap.address, "decode", **of_decode)
    chance = np.random.default_rng(5)
    for number in (700, 701):
        model = prefill.fill(chance)
        request = Request(prefill, decode, number).tell().send()
        request.ends(SUCCESS)

        def check(found, wanted):
            assert np.array_equal(found, wanted)

        decode.each(model, check)
        for place, rank in enumerate(decode.ranks):
            tensor, stage = decode.place(place)
            each = max(1, prefill.tensor // decode.tensor)
            source = tensor * each if each > 1 else tensor * prefill.tensor // decode.tensor
            stage = stage if decode.stages == prefill.stages else prefill.stages - 1
            aux = prefill.ranks[stage * prefill.tensor + source].aux_row(request.row)
            assert rank.aux_row(request.row + 1) == aux
        request.clear()
    prefill.close()
    decode.close()


MAMBA = [Divided(1, (8,), 512), Divided(1, (8, 8, 16), 6), Divided(3, (8, 8, 16), 2)]  # Mamba, GDN, Kimi
WINDOW = [Divided(PAGE, (TOTAL_HEADS,), 2 * SIZE)] * LAYERS  # of half of the layers, K and V
OF_STATE = {
    "1 rank to 2": (1, 2),
    "4 ranks to 2": (4, 2),
    "2 ranks to 4": (2, 4),
    "2 ranks on each side": (2, 2),
}


KINDS = {
    "Mamba": (MAMBA, {"state": MAMBA}),
    "Mamba, of two types": (MAMBA, {"state": MAMBA, "elements": ("fp32", "bf16", "bf16")}),
    "windows": (WINDOW, {"kind": "swa"}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", OF_STATE)
def test_state_is_divided_as_ranks_are(nodes, bootstrap, case, kind):
    described, more = KINDS[kind]
    prefill, decode = (
        Engine(node, bootstrap.address, mode, tensor=tensor, **more)
        for node, mode, tensor in zip(nodes.daemons, ("prefill", "decode"), OF_STATE[case])
    )
    if "elements" in more:
        assert all(list(rank.manager.groups[0]) == ["fp32", "bf16"] for rank in (*prefill.ranks, *decode.ranks))
    chance = np.random.default_rng(6)
    count = 5 if kind == "windows" else 1
    for number in (740, 741):
        kept = prefill.fill(chance)
        model = [chance.integers(0, 256, (count, d.outer, sum(d.groups), d.size), np.uint8) for d in described]
        pages = [len(side.ranks[0].of_state(side.ranks[0].manager.kv_args)[0]) for side in (prefill, decode)]
        from_ids, to_ids = (chance.permutation(np.arange(1, limit))[:count].astype(np.int32) for limit in pages)
        for rank, own in enumerate(prefill.ranks):
            for buffer, one, values in zip(own.of_state(own.manager.kv_args), described, model, strict=True):
                buffer[from_ids] = one.of_rank(values, rank, prefill.tensor)
        request = Request(prefill, decode, number).tell(states=[to_ids]).send([from_ids])
        request.ends(SUCCESS)
        decode.each(kept, lambda found, wanted: np.testing.assert_array_equal(found, wanted))
        for rank, own in enumerate(decode.ranks):
            for buffer, one, values in zip(own.of_state(own.manager.kv_args), described, model, strict=True):
                assert np.array_equal(buffer[to_ids], one.of_rank(values, rank, decode.tensor))
        request.clear()
    prefill.close()
    decode.close()


def test_a_rank_that_fails_is_heard_by_all(nodes, bootstrap):
    prefill = Engine(nodes.daemons[0], bootstrap.address, "prefill", tensor=2)
    decode = Engine(nodes.daemons[1], bootstrap.address, "decode")
    request = Request(prefill, decode, 710).tell()
    until(lambda: all(sender.poll() == WAITING for sender in request.senders), what="the handshake")
    request.senders[0].abort()
    request.ends(FAILED)
    for part in (*request.senders, *request.receivers):
        failure_of(part)
    decode.ranks[0].manager.clear_deferred_abort_state(710)
    prefill.close()
    decode.close()


REFUSED = {
    "TP with a state that is not described": (
        {"state": STATE},
        {"tensor": 2, "state": STATE},
        "attention TP 1 at the prefill, 2 here",
    ),
    "TP with a state of which no part is a rank's": (
        {"state": [Divided(1, (8, 4), 6)]},
        {"tensor": 8, "state": [Divided(1, (8, 8), 6)]},
        "attention TP 1 at the prefill, 8 here",
    ),
    "stages of the decode engine alone": ({}, {"stages": 2}, "PP 1 at the prefill, 2 here"),
    "stages with a state": ({"stages": 2, "state": STATE}, {"state": STATE}, "PP 2 at the prefill, 1 here"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(nodes, bootstrap, case):
    of_prefill, of_decode, text = REFUSED[case]
    prefill = Engine(nodes.daemons[0], bootstrap.address, "prefill", **of_prefill)
    decode = Engine(nodes.daemons[1], bootstrap.address, "decode", **of_decode)
    receiver = decode.ranks[-1].receiver(720)
    assert receiver.poll() == FAILED
    assert text in failure_of(receiver)
    prefill.close()
    decode.close()


def test_a_prefix_that_ends_inside_of_a_page_is_refused(nodes, bootstrap):
    prefill = Engine(nodes.daemons[0], bootstrap.address, "prefill", page=64)
    decode = Engine(nodes.daemons[1], bootstrap.address, "decode")
    request = Request(prefill, decode, 730).tell(prefix=48)
    request.ends(FAILED)
    assert "48 tokens already, which end inside of a page of 64 tokens" in failure_of(request.receivers[0])
    failure_of(request.senders[0])
    decode.ranks[0].manager.clear_deferred_abort_state(730)
    prefill.close()
    decode.close()
