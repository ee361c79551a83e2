"""Which ranks of a prefill engine a decode engine's rank takes from."""

import pytest

from strait._parallel import Parallel, Rank, consumers_of, sources_of, spare_of

ONE_STAGE = ((0, 8),)
HEADS = 8


def engine(tensor, stages=ONE_STAGE, heads=HEADS):
    return Parallel(heads, tensor, stages)


ENGINES = [engine(n) for n in (1, 2, 4, 8, 16, 32)]
ENGINES += [engine(n, ((0, 4), (4, 8))) for n in (1, 4, 16)]
ENGINES += [engine(2, ((0, 3), (3, 6), (6, 8)))]


@pytest.mark.parametrize("prefill", ENGINES, ids=str)
@pytest.mark.parametrize("decode", ENGINES, ids=str)
def test_each_head_of_each_layer_comes_once(prefill, decode):
    for rank in decode.ranks():
        first, end = decode.stages[rank.stage]
        wanted = {(layer, head) for layer in range(first, end) for head in decode.heads_of(rank.tensor)}
        found = []
        for source in sources_of(prefill, decode, rank):
            begin, behind = prefill.stages[source.stage]
            found += [(layer, head) for layer in range(begin, behind) for head in prefill.heads_of(source.tensor)]
        brought = [each for each in found if each in wanted]
        assert sorted(brought) == sorted(wanted)


@pytest.mark.parametrize("prefill", ENGINES, ids=str)
@pytest.mark.parametrize("decode", ENGINES, ids=str)
def test_consumers_are_those_that_take(prefill, decode):
    counts = consumers_of(prefill, decode)
    takers = [source for rank in decode.ranks() for source in sources_of(prefill, decode, rank)]
    assert counts == {rank: takers.count(rank) for rank in prefill.ranks()}


@pytest.mark.parametrize("prefill", ENGINES, ids=str)
@pytest.mark.parametrize("decode", ENGINES, ids=str)
def test_ranks_from_which_nobody_takes_are_let_go(prefill, decode):
    spare = spare_of(prefill, decode)
    unused = [rank for rank, count in consumers_of(prefill, decode).items() if count == 0]
    assert sorted(rank for ranks in spare.values() for rank in ranks) == sorted(unused)
    for rank, sources in spare.items():
        for source in sources:  # a rank that has nothing of the other's could not name its pool
            assert set(decode.heads_of(rank.tensor)) & set(prefill.heads_of(source.tensor))
            assert set(range(*decode.stages[rank.stage])) & set(range(*prefill.stages[source.stage]))


def test_replicas_share_the_work():
    """Eight heads on 32 ranks, taken by as many ranks as there are heads twice: no rank is asked twice."""
    counts = consumers_of(engine(32), engine(16))
    assert sum(counts.values()) == 16 and max(counts.values()) == 1


def test_equal_engines_meet_rank_by_rank():
    for each in ENGINES:
        assert all(sources_of(each, each, rank) == [rank] for rank in each.ranks())


@pytest.mark.parametrize(
    "prefill, decode",
    [(engine(2), engine(2, heads=4)), (engine(1, heads=0), engine(2, heads=0)), (engine(1), engine(1, ((8, 9),)))],
    ids=["heads", "heads that are not known", "layers"],
)
def test_what_does_not_fit_names_both(prefill, decode):
    with pytest.raises(ValueError) as failure:
        sources_of(prefill, decode, Rank(0, 0))
    assert str(prefill) in str(failure.value) and str(decode) in str(failure.value)


def test_heads_that_are_not_known_meet_rank_by_rank():
    each = engine(4, heads=0)
    assert all(sources_of(each, each, rank) == [rank] for rank in each.ranks())


def nested(depth):
    found = []
    for _ in range(depth):
        found = [found]
    return found


def test_a_description_comes_back():
    for each in ENGINES:
        assert Parallel.of(each.describe()) == each


@pytest.mark.parametrize(
    "described",
    [None, 7, [], [8, 2], [8, 0, [[0, 8]]], [8, 3, [[0, 8]]], [-1, 1, [[0, 8]]], [8, 1, [[0]]], [8, 1 << 20, [[0, 8]]],
     [8, 1, []], "812",
     [float("inf"), 1, []], [8, float("inf"), [[0, 8]]], [8, 1, [[0, float("nan")]]], [8.0, 1, [[0, 8]]],
     [True, True, [[False, True]]], [None, 1, [[0, 8]]], ["8", "1", [["0", "8"]]], [8, 1, ["08"]], [8, 1, {"08": 1}],
     [10**4000, 1, [[0, 8]]], [8, 10**4000, [[0, 8]]], [8, 1, [[0, 10**4000]]], [8, 1, [[-8, 8]]], [8, 1, [[8, 0]]],
     [8, 1, [[[0], 8]]], [8, 1, nested(10000)], nested(10000), {"a": 8, "b": 1, "c": []}],
)  # fmt: skip
def test_other_descriptions_are_none(described):
    assert Parallel.of(described) is None
