"""The binding of libstrait: alone, and with the daemon that STRAITD names."""

import gc
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import values_like_kv

import strait

try:
    from strait import service
except ImportError as failure:
    pytest.skip(f"libstrait.so: {failure}", allow_module_level=True)

from daemons import Daemon, connect, until, verdicts

from strait._abi import ELEMENTS
from strait.service import Direction, EventType, Layout, Mismatch, Pages, Reason, Region, State

PAGES, SHAPE = 64, (16, 4, 32)  # tokens, heads, values: 4 KiB

# ---- Without a daemon -----------------------------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path):
    with service.Client(tmp_path / "nobody.sock") as client:
        (event,) = client.poll()
        assert event.type == EventType.CONNECTION and not event.connected
        assert event.text == f"no daemon at {tmp_path}/nobody.sock: No such file or directory"
        yield client


def make_pool(client, layers=2, pages=PAGES, fill=None):
    """A pool of K and V in one Memory, and its arrays by class."""
    classes = [(role, layer) for layer in range(layers) for role in "kv"]
    memory = service.alloc(len(classes) * pages * int(np.prod(SHAPE)) * 2)
    whole = np.frombuffer(memory, np.uint16).reshape(len(classes), pages, *SHAPE)
    if fill is not None:
        whole[:] = values_like_kv(whole.size, seed=fill).reshape(whole.shape)
    arrays = dict(zip(classes, whole))
    return client.register(arrays), arrays


def test_memory_is_shared_sealed_and_lives_as_long_as_its_arrays():
    memory = service.alloc(5000)
    assert len(memory) == 8192 and not any(memory)
    array, same = np.frombuffer(memory, np.uint8), np.asarray(memory)
    array[7] = 9
    assert same[7] == 9 and os.pread(memory.fd, 1, 7) == b"\x09"
    with pytest.raises(OSError):
        os.ftruncate(memory.fd, 0)
    fd = memory.fd
    del memory, same
    gc.collect()
    assert array[7] == 9 and os.fstat(fd).st_size == 8192
    del array
    gc.collect()
    with pytest.raises(OSError):
        os.fstat(fd)
    for size in (0, -1):
        with pytest.raises(strait.InvalidError):
            service.alloc(size)


def test_torch_wraps_memory():
    torch = pytest.importorskip("torch")
    memory = service.alloc(4096)
    tensor = torch.frombuffer(memory, dtype=torch.bfloat16)
    tensor[3] = 1.0
    assert np.frombuffer(memory, np.uint16)[3] == 0x3F80


def test_only_memory_that_a_daemon_can_map_is_registered(alone):
    with pytest.raises(ValueError, match="alloc"):
        alone.register({("k", 0): np.zeros((4, 64), np.uint16)})
    with pytest.raises(strait.InvalidError):
        alone.register({})
    array = np.frombuffer(service.alloc(4096), np.uint16).reshape(8, -1)
    with pytest.raises(TypeError, match="dtype"):
        alone.register({("k", 0): array}, element="fp32")
    with pytest.raises(strait.InvalidError, match="fp64"):
        alone.register({("k", 0): array}, element="fp64")
    assert len(alone.register({("k", 0): array}).id) == 16


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_integers_of_one_byte_need_an_element(alone, dtype):
    """INT8 is not BF16, and BF16 viewed as bytes is."""
    array = np.frombuffer(service.alloc(4096), dtype).reshape(8, -1)
    with pytest.raises(TypeError, match="'bytes' for INT8 and FP4"):
        alone.register({("k", 0): array})
    for element in ("bytes", "bf16", "fp8_e4m3"):
        alone.register({("k", 0): array}, element=element)
        alone.register({("k", 0): Region(array, element=element)})


@pytest.mark.parametrize("dtype, element", [(np.float16, "fp16"), (np.float32, "fp32"), (np.int16, "bf16")])
def test_the_type_of_an_array_is_its_element(alone, dtype, element):
    array = np.frombuffer(service.alloc(4096), dtype).reshape(8, -1)
    described = service._describe(("k", 0), Region(array), None, False)
    assert described.element == ELEMENTS[element]
    alone.register({("k", 0): array})


def test_groups_and_strided_pages_are_registered(alone):
    memory = service.alloc(1 << 20)
    interleaved = np.frombuffer(memory, np.uint16)[: 2 * 8 * 64].reshape(2, 8, 64)  # [K or V, page, values]
    scales = np.frombuffer(memory, np.float32)[1024 : 1024 + 80].reshape(8, 10)
    pool = alone.register(
        {
            ("k", 0): interleaved[0],
            ("v", 0): Region(interleaved[1], heads=2),
            ("other", 1): Region(scales, group=1, element="fp32"),
        }
    )
    pool.expect("a", [Pages([1, 2]), Pages(range(4, 8), group=1, first=3)], deadline=1).release()
    with pytest.raises(strait.InvalidError):
        pool.expect("a", Pages([0], group=2), deadline=1)
    with pytest.raises(strait.InvalidError):
        alone.register({("k", 0): interleaved[0], ("v", 0): Region(scales, element="fp32")})  # two of one group


@pytest.mark.parametrize("ids", [[PAGES], range(PAGES - 1, PAGES + 1), [-1], [2**32], range(-1, 2)])
def test_ids_out_of_range_are_refused(alone, ids):
    pool, _ = make_pool(alone)
    with pytest.raises(strait.InvalidError):
        pool.expect("a", ids, deadline=1)
    with pytest.raises(strait.InvalidError):
        pool.offer("a", ids, lease=1)


def test_other_arguments_are_checked(alone):
    pool, _ = make_pool(alone)
    for key in ("", b"k" * 129):
        with pytest.raises(strait.InvalidError):
            pool.expect(key, deadline=1)
    for seconds in (0, -1, 86401):
        with pytest.raises(strait.InvalidError):
            pool.expect("a", deadline=seconds)
    with pytest.raises(TypeError):
        pool.expect("a", [0.5], deadline=1)
    with pytest.raises(strait.InvalidError):
        pool.offer("a", lease=1, aux=b"without last")
    offer = pool.offer("a", lease=1)
    with pytest.raises(strait.InvalidError):
        offer.append(layers=range(0))
    with pytest.raises(TypeError, match="range"):
        offer.append(layers=3)
    offer.append([1, 2], last=True, aux=b"\0binary\0")
    with pytest.raises(strait.InvalidError):
        offer.append([3])
    with pytest.raises(strait.AgainError):
        pool.export()
    with pytest.raises(strait.AgainError, match=r"no daemon at .*nobody\.sock"):
        pool.export(timeout=0.01)
    with pytest.raises(strait.InvalidError):
        alone.register({("k", 0): Region(service.alloc(4096))}, element="bytes", compat="model\n")
    with pytest.raises(strait.AgainError):
        alone.request_stats()
    with pytest.raises(strait.DataError):
        alone.import_peer(b"no blob")


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "trace, why",
    [
        ("00", "a hyphen is missing"),
        (TRACE.upper(), "small hexadecimal digits"),
        (TRACE + "-", "something follows the flags"),
        (TRACE + "\0", "it has a NUL"),
        ("ff" + TRACE[2:], "version ff is none"),
        ("00-0af7651916cd43dd8448eb211c80319\udc63" + TRACE[35:], "the trace id is not"),
    ],
)
def test_a_malformed_trace_says_what_is_wrong(alone, trace, why):
    pool, _ = make_pool(alone)
    assert why in service.check_trace(trace)
    with pytest.raises(strait.InvalidError, match=why):
        pool.expect("a", deadline=1, trace=trace)
    with pytest.raises(strait.InvalidError, match=why):
        pool.offer("a", lease=1, trace=trace)
    assert service.check_trace(TRACE) == service.check_trace("") == ""


def test_a_deadline_passes_without_a_daemon(alone):
    pool, _ = make_pool(alone)
    began = time.monotonic()
    with pool.expect("a", [3, 1], deadline=0.5) as transfer:
        assert any(not alone.poll() and not select.select([alone], [], [], 0)[0] for _ in range(10))
        (event,) = alone.wait(5)
        assert time.monotonic() - began >= 0.495
        assert event.type == EventType.STATE and event.transfer is transfer
        assert (event.state, event.reason, event.drained) == (State.FAILED, Reason.TIMEOUT, True)
        assert event.failed == ((0, 3), (0, 1)) and event.failed[0].id == 3 and event.text
        assert transfer.progress == (State.FAILED, Reason.TIMEOUT, True, 0, 0)
        assert not alone.connected
    with pytest.raises(ValueError, match="ended"):
        transfer.abort()


def test_what_is_aborted_or_removed_says_so(alone):
    pool, _ = make_pool(alone)
    transfer = pool.expect("a", range(3), deadline=60)
    transfer.abort()
    (event,) = alone.poll()
    assert event.reason == Reason.ABORTED and event.transfer is transfer
    pool.remove()
    (event,) = alone.poll()
    assert event.type == EventType.POOL_REMOVED and event.pool is pool
    with pytest.raises(ValueError, match="ended"):
        pool.expect("b", deadline=1)


def test_closing_ends_everything(tmp_path):
    client = service.Client(tmp_path / "nobody.sock")
    pool, _ = make_pool(client)
    transfer = pool.offer("a", [1], lease=9)
    client.close()
    client.close()
    for use in (client.poll, lambda: pool.id, transfer.abort):
        with pytest.raises(ValueError):
            use()
    transfer.release()


# ---- With a daemon --------------------------------------------------------------------------------------------------


@pytest.fixture
def daemon(tmp_path):
    if "STRAITD" not in os.environ:
        pytest.skip("STRAITD does not name the daemon")
    daemon = Daemon(tmp_path)
    daemon.start()
    yield daemon
    daemon.stop()


def test_pages_arrive(daemon):
    with service.Client(daemon.socket) as sink, service.Client(daemon.socket) as source:
        connect(sink, source)
        there, have = make_pool(source, fill=1)
        here, got = make_pool(sink)
        before = {cls: array.copy() for cls, array in got.items()}
        peer = sink.import_peer(there.export())
        assert here.mismatch(peer) == Mismatch(0)
        offer = there.offer("r", np.array([5, 9, 2]), lease=10, last=True, aux=b"tail")
        expectation = here.expect("r", range(30, 33), deadline=10)
        expectation.start(peer)
        said = verdicts(until((sink, source), lambda said: len(verdicts(said)) == 2))
        assert said[expectation].state == said[offer].state == State.DONE
        assert said[expectation].data == b"tail" and said[expectation].drained
        for cls in got:
            before[cls][30:33] = have[cls][[5, 9, 2]]
            assert (got[cls] == before[cls]).all(), cls


def test_many_requests_go_together(daemon):
    with service.Client(daemon.socket) as sink, service.Client(daemon.socket) as source:
        connect(sink, source)
        there, have = make_pool(source, fill=1)
        here, got = make_pool(sink)
        peer = sink.import_peer(there.export())
        with source.corked(), sink.corked():
            offers = [there.offer(f"{page}", [page], lease=10, last=True) for page in range(30)]
            expectations = [here.expect(f"{page}", [29 - page], deadline=10) for page in range(30)]
            for expectation in expectations:
                expectation.start(peer)
        said = verdicts(until((sink, source), lambda said: len(verdicts(said)) == 60))
        assert {said[each].state for each in (*offers, *expectations)} == {State.DONE}
        assert all((got[cls][29::-1] == have[cls][:30]).all() for cls in got)


def spans_of(daemon):
    """The fields of each span that the daemon has logged."""
    lines = [line for line in (daemon.folder / "log").read_text().splitlines() if " msg=span " in line]
    return [dict(field.split("=", 1) for field in shlex.split(line)) for line in lines]


def test_requests_of_a_trace_leave_spans(daemon):
    with service.Client(daemon.socket) as sink, service.Client(daemon.socket) as source:
        connect(sink, source)
        there, _ = make_pool(source, fill=1)
        here, _ = make_pool(sink)
        peer = sink.import_peer(there.export())
        there.serve(range(8))
        there.offer("r", range(10, 13), lease=10, last=True, trace=TRACE)
        transfers = [
            here.expect("r", range(3), deadline=10, trace=TRACE),
            here.read(peer, range(3, 5), range(2), deadline=10, trace="cc-" + TRACE[3:] + "-later"),
            here.expect("unsampled", deadline=0.05, trace=TRACE[:-1] + "0"),
            here.expect("alone", deadline=0.05, trace=TRACE),
            here.expect("none", deadline=0.05, trace=""),
        ]
        transfers[0].start(peer)
        until((sink, source), lambda said: set(transfers) <= set(verdicts(said)))
    daemon.stop()
    spans = spans_of(daemon)
    assert sorted((span["name"], span["status"]) for span in spans) == [
        ("strait.expect", "error"),
        ("strait.expect", "ok"),
        ("strait.offer", "ok"),
        ("strait.read", "ok"),
    ]
    assert {(span["trace_id"], span["parent_id"]) for span in spans} == {tuple(TRACE.split("-")[1:3])}
    assert len({span["span_id"] for span in spans}) == len(spans)
    failed = next(span for span in spans if span["status"] == "error")
    assert failed["key"] == "alone" and failed["reason"] == "timeout"
    script = Path(__file__).resolve().parents[2] / "deploy/opentelemetry/spans.py"
    if script.exists():  # what it makes of them is what was asked for
        log = (daemon.folder / "log").read_bytes()
        made = subprocess.run([sys.executable, str(script)], input=log, check=True, stdout=subprocess.PIPE).stdout
        (resource,) = json.loads(made)["resourceSpans"]
        made = {span["spanId"]: span for span in resource["scopeSpans"][0]["spans"]}
        assert {span["span_id"] for span in spans} <= set(made)
        for span in spans:
            assert made[span["span_id"]]["name"] == span["name"]
            assert any(child["parentSpanId"] == span["span_id"] for child in made.values())


def test_pools_that_do_not_match_say_how(daemon):
    with service.Client(daemon.socket) as sink, service.Client(daemon.socket) as source:
        connect(sink, source)
        there, _ = make_pool(source, layers=3)
        here, _ = make_pool(sink, layers=2)
        peer = sink.import_peer(there.export())
        assert here.mismatch(peer) == Mismatch.RESHAPED
        text = "group 0, layer 2, K: missing here, 2 layers here, 3 there"
        assert here.explain(peer) == text + "; pages are rearranged"
        there = source.register({("other", 2): np.frombuffer(service.alloc(4096), np.uint16).reshape(8, -1)})
        peer = sink.import_peer(there.export())
        assert here.mismatch(peer) == Mismatch.LAYERS
        text = "group 0, layer 0, K: missing there, 2 layers here, 1 there"
        assert here.explain(peer) == text + "; the pools have no layer and head in common"
        with here.expect("r", [1], deadline=10) as expectation:
            with pytest.raises(strait.InvalidError, match="do not match: group 0, layer 0, K: missing there"):
                expectation.start(peer)
            with pytest.raises(strait.InvalidError, match="invalid argument"):
                here.expect("s", [2], deadline=10).start(sink.import_peer(here.export()), direction=Direction.PUSH)
        assert here.explain(sink.import_peer(here.export())) == ""


def test_layers_arrive_as_they_become_ready(daemon):
    with service.Client(daemon.socket) as sink, service.Client(daemon.socket) as source:
        connect(sink, source)
        there, have = make_pool(source, layers=3, fill=2)
        here, got = make_pool(sink, layers=3)
        peer = source.import_peer(here.export())
        expectation = here.expect("r", [1, 2], deadline=10)
        offer = there.offer("r", [8, 7], lease=10, later=True)
        offer.start(peer)
        for layer in range(3):
            offer.append(layers=range(layer, layer + 1), last=layer == 2)
        said = until((sink, source), lambda said: len(verdicts(said)) == 2)
        assert verdicts(said)[expectation].state == State.DONE
        assert {event.layer for event in said if event.type == EventType.LAYER} == {0, 1, 2}
        assert all((got[cls][1:3] == have[cls][[8, 7]]).all() for cls in got)


def landed(said):
    return {id: page for event in said for pages in event.landed for page, id in enumerate(pages.ids, pages.first)}


def test_pages_are_told_of_as_they_arrive(daemon):
    with service.Client(daemon.socket) as sink, service.Client(daemon.socket) as source:
        there, have = make_pool(source, layers=3, fill=2)
        here, got = make_pool(sink, layers=3)
        ids = [9, 3, 4, 5, 20, 1]
        expectation = here.expect("r", ids, deadline=10, tell_pages=True)
        offer = there.offer("r", lease=10)
        offer.start(source.import_peer(here.export(timeout=5)))
        told = {}
        for first, chunk in [(2, [40, 41, 42]), (0, [7, 8]), (5, [11])]:
            offer.append(Pages(chunk, first=first))
            wanted = {ids[first + i]: first + i for i in range(len(chunk))}
            new = landed(until((sink, source), lambda said, wanted=wanted: landed(said).keys() >= wanted.keys()))
            assert new == wanted and not told.keys() & new.keys()
            assert all((got[cls][ids[first : first + len(chunk)]] == have[cls][chunk]).all() for cls in got)
            told |= new
        assert expectation.progress.state == State.TRANSFERRING and expectation.progress.pages_landed == 6
        offer.append(last=True)
        assert verdicts(until((sink, source), lambda said: len(verdicts(said)) == 2))[expectation].state == State.DONE
        there.serve()
        read = here.read(sink.import_peer(there.export()), [1, 2], [5, 6], deadline=10, tell_pages=True)
        said = until((sink, source), lambda said: read in verdicts(said))
        assert landed(said) == {1: 0, 2: 1} and [said[-1].transfer, said[-1].state] == [read, State.DONE]


def test_chunks_arrive_layer_by_layer(daemon):
    with service.Client(daemon.socket) as sink, service.Client(daemon.socket) as source:
        there, have = make_pool(source, layers=3, fill=2)
        here, got = make_pool(sink, layers=3)
        expectation = here.expect("r", range(8), deadline=10)
        offer = there.offer("r", lease=10)
        offer.start(source.import_peer(here.export(timeout=5)))
        chunks = [Pages(range(20, 24)), Pages(range(40, 44), first=4)]
        offer.append(chunks[1], later=True)
        for layer in range(3):
            for chunk in chunks:
                offer.append(chunk, layers=range(layer, layer + 1), last=(layer, chunk) == (2, chunks[1]))
        said = verdicts(until((sink, source), lambda said: len(verdicts(said)) == 2))
        assert said[expectation].state == State.DONE
        assert all((got[cls][:8] == have[cls][[20, 21, 22, 23, 40, 41, 42, 43]]).all() for cls in got)
        wrong = there.offer("w", [1], lease=10)
        wrong.append([2], layers=range(1))
        event = verdicts(until((sink, source), lambda said: wrong in verdicts(said)))[wrong]
        assert event.reason == Reason.GEOMETRY and event.text == "logical index 0 of group 0 was page 1 before"


def test_the_order_in_a_page_and_the_token_are_compared(daemon):
    with service.Client(daemon.socket) as client:
        array = np.frombuffer(service.alloc(8 * 4096), np.uint16).reshape(8, 16, 2, 64)

        def pool(layout, compat):
            region = Region(array, heads=2, layout=layout, tokens=16)
            return client.register({("kv", 0): region}, compat=compat)

        one = pool(Layout.NHD, "m1")
        for layout, compat, bits, text in [
            (Layout.NHD, "m1", Mismatch(0), ""),
            (
                Layout.HND,
                "m1",
                Mismatch.RESHAPED,
                "group 0, layer 0, KV: order NHD here, order HND there; pages are rearranged",
            ),
            (Layout.NONE, "m1", Mismatch.LAYOUT, "group 0, layer 0, KV: order NHD here, order not declared there"),
            (Layout.NHD, "m2", Mismatch.COMPAT, 'compatibility token "m1" here, "m2" there'),
        ]:
            peer = client.import_peer(pool(layout, compat).export(timeout=5))
            assert one.mismatch(peer) == bits and one.explain(peer).startswith(text)
            if bits & Mismatch.FATAL:
                with pytest.raises(strait.InvalidError, match=text):
                    one.expect(text, [1], deadline=10).start(peer)


def test_an_offer_is_declined_without_a_transfer(daemon):
    with service.Client(daemon.socket) as sink, service.Client(daemon.socket) as source:
        there, _ = make_pool(source)
        here, _ = make_pool(sink)
        here.wait(5)
        offer = there.offer("r", [1], lease=60, last=True)
        here.decline(sink.import_peer(there.export(timeout=5)), "r")
        event = verdicts(until((sink, source), lambda said: offer in verdicts(said)))[offer]
        assert (event.reason, event.drained) == (Reason.PEER_ABORT, True)


def fenced(said, number):
    return any(event.type == EventType.FENCED and event.fence == number for event in said)


def test_served_pages_are_read_until_a_fence(daemon):
    source, sink = (service.Client(daemon.socket) for _ in range(2))
    pool, arrays = make_pool(source, fill=5)
    own, landed = make_pool(sink)
    pool.serve([3, 4, 9])
    peer = sink.import_peer(pool.export(timeout=5))
    transfer = own.read(peer, [1, 0], [9, 3], deadline=10)
    said = until([source, sink], lambda said: transfer in verdicts(said))
    assert verdicts(said)[transfer].state == State.DONE
    for cls, array in landed.items():
        assert (array[1] == arrays[cls][9]).all() and (array[0] == arrays[cls][3]).all() and not array[2:].any()

    number = pool.fence([9], grace=1)
    assert number != pool.fence()  # of all pages
    until([source, sink], lambda said: fenced(said, number) and fenced(said, number + 1))
    refused = own.read(peer, [1], [3], deadline=10)
    said = until([source, sink], lambda said: refused in verdicts(said))
    assert verdicts(said)[refused].reason == Reason.NOT_SERVED
    for wrong in (
        lambda: own.read(peer, [1, 2], [3], deadline=10),
        lambda: pool.serve([PAGES]),
        lambda: pool.fence([PAGES]),
    ):
        with pytest.raises(strait.InvalidError):
            wrong()
    other = sink.register({("other", 0): np.frombuffer(service.alloc(4096), np.uint16).reshape(8, -1)})
    with pytest.raises(strait.InvalidError, match=r"read: the pools do not match: .*layer"):
        other.read(peer, [1], [3], deadline=10)
    for client in (source, sink):
        client.close()


OWNER = """
import sys, time
sys.path[:0] = sys.argv[2:]
from test_service import make_pool, service
client = service.Client(sys.argv[1])
pool, _ = make_pool(client, fill=6)
pool.serve()
print(pool.export(timeout=10).hex(), flush=True)
client.request_stats()  # answered when the daemon knows what is served
while not client.wait(): pass
print("ready", flush=True)
time.sleep(600)
"""


def test_a_stopped_process_is_read(daemon):
    paths = [str(Path(__file__).parent), *sys.path]
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(daemon.socket), *paths], stdout=subprocess.PIPE, text=True
    )
    try:
        blob = bytes.fromhex(owner.stdout.readline())
        assert owner.stdout.readline() == "ready\n"
        owner.send_signal(signal.SIGSTOP)
        with service.Client(daemon.socket) as sink:
            own, landed = make_pool(sink)
            peer = sink.import_peer(blob)
            transfer = own.read(peer, range(PAGES), range(PAGES), deadline=30)
            said = until([sink], lambda said: transfer in verdicts(said))
            assert verdicts(said)[transfer].state == State.DONE
            values = values_like_kv(4 * PAGES * int(np.prod(SHAPE)), seed=6).reshape(4, PAGES, *SHAPE)
            assert all((array == values[i]).all() for i, array in enumerate(landed.values()))
            owner.kill()
            owner.wait()
            gone = own.read(peer, [0], [0], deadline=30)
            said = until([sink], lambda said: gone in verdicts(said))
            assert verdicts(said)[gone].reason == Reason.PEER_DOWN
    finally:
        owner.kill()
        owner.wait()


def test_a_refused_pool_says_why(daemon):
    with service.Client(daemon.socket) as client:
        array = np.frombuffer(service.alloc(8192), np.uint16).reshape(2, 2048)
        pool = client.register({("k", 0): array, ("v", 0): array})
        with pytest.raises(strait.InvalidError, match="same memory"):
            pool.wait(5)


def test_the_readme_runs(daemon, monkeypatch):
    text = (Path(__file__).parents[1] / "README.md").read_text()
    monkeypatch.setenv("STRAIT_SOCKET", str(daemon.socket))
    (block,) = (b for b in re.findall(r"```py\n(.*?)```", text, re.DOTALL) if "service.Client()" in b)
    names = {}
    exec(block, names)
    assert names["expectation"].progress.state == State.DONE


def test_a_missing_source_is_a_timeout_with_the_pages(daemon):
    with service.Client(daemon.socket) as sink, service.Client(daemon.socket) as source:
        connect(sink, source)
        here, _ = make_pool(sink)
        there, _ = make_pool(source)
        expectation = here.expect("r", [4], deadline=0.3)
        expectation.start(sink.import_peer(there.export()))
        event = verdicts(until((sink, source), lambda said: verdicts(said)))[expectation]
        assert event.reason == Reason.TIMEOUT and event.failed == ((0, 4),)


def test_a_killed_daemon_is_replaced_without_a_new_import(daemon):
    with service.Client(daemon.socket) as sink, service.Client(daemon.socket) as source:
        connect(sink, source)
        there, have = make_pool(source, fill=3)
        here, got = make_pool(sink)
        expectation = here.expect("lost", [0], deadline=10)
        until((sink, source), lambda said: sum(event.type == EventType.POOL for event in said) == 2)
        daemon.stop(signal.SIGKILL)
        event = verdicts(until((sink, source), lambda said: verdicts(said)))[expectation]
        assert event.reason == Reason.LOCAL and event.drained
        daemon.start()
        connect(sink, source)
        peer = sink.import_peer(there.export())
        there.offer("again", [6], lease=10, last=True)
        expectation = here.expect("again", [0], deadline=10)
        expectation.start(peer)
        done = until((sink, source), lambda said: expectation in verdicts(said))
        assert verdicts(done)[expectation].state == State.DONE
        assert all((got[cls][0] == have[cls][6]).all() for cls in got)


def test_an_embedded_daemon_takes_any_array():
    try:
        client = service.Client(embedded="")
    except strait.UnsupportedError:
        pytest.skip("libstrait-node.so.0 is not where the loader looks")
    with client:
        connect(client)
        have, got = values_like_kv(8 * 64, seed=4).reshape(8, 64), np.zeros((8, 64), np.uint16)
        there, here = client.register({("k", 0): have}), client.register({("k", 0): got})
        there.offer("r", [1, 2], lease=10, last=True)
        expectation = here.expect("r", [6, 7], deadline=10)
        expectation.start(client.import_peer(there.export()))
        said = until((client,), lambda said: expectation in verdicts(said))
        assert verdicts(said)[expectation].state == State.DONE
        assert (got[6:] == have[1:3]).all() and not got[:6].any()


def test_statistics_are_json(daemon):
    with service.Client(daemon.socket) as client:
        connect(client)
        client.request_stats()
        said = until((client,), lambda said: any(event.type == EventType.STATS for event in said))
        assert isinstance(json.loads(next(event.data for event in said if event.type == EventType.STATS)), dict)


def test_notes_reach_the_owner_of_the_pool(daemon):
    with service.Client(daemon.socket) as one, service.Client(daemon.socket) as other:
        connect(one, other)
        pool, _ = make_pool(one)
        until((one, other), lambda said: any(event.type == EventType.POOL for event in said))
        other.import_peer(pool.export()).notify("about", b"\0this")
        said = until((one, other), lambda said: any(event.type == EventType.NOTE for event in said))
        note = next(event for event in said if event.type == EventType.NOTE)
        assert (note.pool, note.key, note.data) == (pool, b"about", b"\0this")
