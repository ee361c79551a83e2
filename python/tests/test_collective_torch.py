"""strait.torch over libstrait-coll, with torch's own FSDP2 and DDP, on CPU tensors."""

import gc
import inspect
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import TREE, loads

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402

from strait import CollectiveError, bench_step  # noqa: E402

RANKS = Path(__file__).with_name("collective_ranks.py")


def find(variable, pattern):
    """What the environment names, else the newest build's."""
    if variable in os.environ:
        return os.environ[variable]
    built = sorted(TREE.glob(f"build*/**/{pattern}"), key=lambda path: path.stat().st_mtime, reverse=True)
    return next((str(path) for path in built if loads(path)), None)


@pytest.fixture(scope="module")
def environment():
    library = find("STRAIT_COLLECTIVE_LIBRARY", "collective/libstrait-coll.so.0")
    nccl = find("STRAIT_TEST_NCCL", "nccl_processes/libnccl.so.2")
    if library is None or nccl is None:
        pytest.skip("needs a build with tests: libstrait-coll and the fake NCCL")
    path = os.pathsep.join([str(TREE / "python"), str(RANKS.parent)])
    names = {name: value for name, value in os.environ.items() if not name.startswith(("STRAIT_COLL", "NCCL_"))}
    return names | {
        "STRAIT_COLLECTIVE_LIBRARY": library,
        "STRAIT_COLL_NCCL": nccl,
        "STRAIT_COLL": "auto",
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def run_ranks(environment, folder, *arguments, count=2):
    """What rank 0 has printed."""
    ranks = [
        subprocess.Popen(
            [sys.executable, str(RANKS), str(folder / "store"), str(rank), str(count), *arguments],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(count)
    ]  # fmt: skip
    try:
        outputs = [rank.communicate(timeout=150)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * count, "\n".join(outputs)
    return outputs[0]


# ---- Protocols of torch ---------------------------------------------------------------------------------------------


def test_collectives_are_what_fsdp2_declares():
    from torch.distributed.fsdp._fully_shard import _fsdp_api, _fsdp_collectives

    from strait.torch import fsdp2

    for ours, base, default in (
        (fsdp2.AllGather, _fsdp_api.AllGather, _fsdp_collectives.DefaultAllGather),
        (fsdp2.ReduceScatter, _fsdp_api.ReduceScatter, _fsdp_collectives.DefaultReduceScatter),
    ):
        assert issubclass(ours, base)
        made = ours()  # nothing abstract is left
        for name in ("__call__", "allocate"):
            declared, has = (inspect.signature(getattr(kind, name)) for kind in (default, ours))
            assert [(p.name, p.kind, p.default) for p in has.parameters.values()] == [
                (p.name, p.kind, p.default) for p in declared.parameters.values()
            ]
        tensor = made.allocate((3, 5), dtype=torch.bfloat16, device=torch.device("cpu"))
        assert tensor.shape == (3, 5) and tensor.dtype == torch.bfloat16


def test_the_hook_is_what_ddp_takes():
    from strait.torch import ddp_hook

    signature = inspect.signature(ddp_hook)
    assert signature.parameters["bucket"].annotation is dist.GradBucket
    assert signature.return_annotation == torch.futures.Future[torch.Tensor]


def test_only_sums_and_averages_are_taken():
    from strait._nccl import Reduction
    from strait.torch.communicator import reduction_of

    for op, expected in ((dist.ReduceOp.SUM, Reduction.SUM), (dist.ReduceOp.AVG, Reduction.AVG)):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            assert reduction_of(op, dtype) == reduction_of(dist.ReduceOp(op), dtype) == expected
        assert reduction_of(op, torch.float64) is None
    assert reduction_of(dist.ReduceOp.MAX, torch.float32) is None
    assert reduction_of(dist._make_nccl_premul_sum(0.5), torch.float32) is None


def test_without_a_group_or_a_gpu_it_says_so(tmp_path):
    from strait.torch import Communicator, close

    with pytest.raises(CollectiveError, match="call init_process_group first"):
        Communicator()
    close()  # nothing to do
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(CollectiveError, match="rank 0: there is no GPU"):
            Communicator()
    finally:
        dist.destroy_process_group()


class FakeNccl:
    """Whose communicators fail when they are told to."""

    def __init__(self):
        self.error, self.destroyed, self.calls, self.aborted = 0, 0, [], threading.Event()

    def ncclCommInitRank(self, comm, *arguments):
        comm._obj.value = 0x1000
        return 0

    def ncclCommGetAsyncError(self, comm, error):
        error._obj.value = self.error
        return 0

    def ncclAllReduce(self, *arguments):
        self.calls.append("all_reduce")
        return 0

    def ncclCommAbort(self, comm):
        self.calls.append("abort")
        self.aborted.set()
        return 0

    def ncclCommDestroy(self, comm):
        self.calls.append("destroy")
        return self.destroyed

    def ncclGetErrorString(self, result):
        return b"a rank has died"

    def ncclGetLastError(self, comm):
        return b""


@pytest.fixture
def nccl(monkeypatch, tmp_path):
    """A FakeNccl, and a group of one rank, on memory of the host."""
    from collective_ranks import Host

    from strait import _nccl
    from strait.torch import communicator

    def agree(self):
        self.gpu = Host()
        return _nccl.UniqueId()

    nccl = FakeNccl()
    monkeypatch.setattr(_nccl, "library", lambda: nccl)
    monkeypatch.setattr(communicator.Communicator, "_agree", agree)
    monkeypatch.setattr(communicator, "_WATCH_S", 0.01)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield nccl
    nccl.error = nccl.destroyed = 0
    communicator.close()
    dist.destroy_process_group()


def test_a_communicator_that_fails_is_aborted_by_the_watch(nccl, capsys):
    from strait.torch import communicator

    healthy, failing = communicator.Communicator(), communicator.communicator_of()
    assert not nccl.aborted.wait(0.2)
    healthy.close()
    healthy.close()
    assert nccl.calls == ["destroy"]
    nccl.error = 6
    assert nccl.aborted.wait(20)
    with pytest.raises(CollectiveError, match="the communicator has failed: a rank has died"):
        failing.all_reduce(torch.zeros(8))
    communicator.close()
    assert nccl.calls == ["destroy", "abort"] and not communicator._communicators
    assert "rank 0 of 1: the communicator has failed: a rank has died" in capsys.readouterr().err


def test_a_call_that_has_the_handle_is_not_overtaken_by_an_abort(nccl):
    from strait.torch import communicator

    made = communicator.Communicator()

    def stream():
        """The communicator fails when the call has its handle, and is not in NCCL yet."""
        nccl.error = 6
        assert not nccl.aborted.wait(0.3)
        return 0

    made.gpu.stream = stream
    made.all_reduce(torch.zeros(8))
    assert nccl.aborted.wait(20)
    assert nccl.calls == ["all_reduce", "abort"]


def test_a_call_that_waits_in_nccl_is_aborted(nccl, monkeypatch):
    from strait.torch import communicator

    monkeypatch.setattr(communicator, "_ENTRY_S", 0.1)
    made = communicator.Communicator()

    def wait(*_):
        nccl.error = 6
        assert nccl.aborted.wait(20)
        return 5

    monkeypatch.setattr(nccl, "ncclAllReduce", wait)
    with pytest.raises(CollectiveError, match="the communicator has failed: a rank has died"):
        made.all_reduce(torch.zeros(8))
    assert nccl.calls == ["abort"]


def test_a_handler_may_ask_while_its_thread_has_the_lock(nccl):
    from strait.torch import communicator

    made, done = communicator.Communicator(), threading.Event()

    def interrupted():
        with made._lock:  # as where a signal, or a finalizer, comes within it
            made.check()
            made.close()
        done.set()

    threading.Thread(target=interrupted, daemon=True).start()
    assert done.wait(20)
    assert nccl.calls == ["destroy"]


def test_calls_go_on_while_the_watch_asks(nccl, monkeypatch):
    """Which may take as long as NCCL does; but the communicator is not ended under it."""
    from strait.torch import communicator

    asks, go_on = threading.Event(), threading.Event()

    def ask(comm, error):
        if threading.current_thread().name == "strait-watch":
            asks.set()
            assert go_on.wait(20)
            nccl.calls.append("asked")
        return 0

    monkeypatch.setattr(communicator, "_watch", communicator.Watch())
    monkeypatch.setattr(communicator, "_ENTRY_S", 20)
    monkeypatch.setattr(nccl, "ncclCommGetAsyncError", ask)
    made, called = communicator.Communicator(), threading.Event()
    assert asks.wait(20)
    threading.Thread(target=lambda: (made.all_reduce(torch.zeros(8)), called.set()), daemon=True).start()
    assert called.wait(10)
    threading.Timer(0.2, go_on.set).start()
    made.close()
    communicator._watch.end()
    assert [nccl.calls[0], nccl.calls[-1]] == ["all_reduce", "destroy"] and "asked" in nccl.calls


def test_all_are_closed_though_one_fails(nccl):
    from strait.torch import communicator

    groups = [dist.new_group([0]) for _ in range(3)]
    made = [communicator.communicator_of(group) for group in groups]
    nccl.destroyed = 6
    with pytest.raises(CollectiveError, match="ncclCommDestroy: a rank has died"):
        communicator.close()
    assert nccl.calls == ["destroy"] * 3 and not communicator._communicators
    with pytest.raises(CollectiveError, match="closed"):
        made[1].check()


def test_a_child_leaves_the_communicators_of_its_parent(nccl):
    from strait.torch import communicator

    of_group, alone = communicator.communicator_of(), communicator.Communicator()
    child = os.fork()
    if child == 0:
        status = 1
        gc.disable()  # what earlier tests have left, of gloo, may not end without its threads, which are not here
        try:
            for made in (of_group, alone):
                with pytest.raises(CollectiveError, match="the process that has forked"):
                    made.check()
                made.close()
            communicator.close()
            assert not nccl.calls
            nccl.error = 6  # its own are watched
            assert communicator.communicator_of() is not of_group and nccl.aborted.wait(20)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    of_group.check()
    alone.close()
    assert nccl.calls == ["destroy"]


def test_what_one_rank_lacks_is_told_whatever_it_is(monkeypatch, tmp_path):
    from strait.torch import communicator

    def fail():
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(communicator, "Gpu", fail)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(CollectiveError, match="rank 0: CUDA error: out of memory"):
            communicator.Communicator()
    finally:
        dist.destroy_process_group()


# ---- Ranks ---------------------------------------------------------------------------------------------------------


def test_training_is_the_same_and_errors_are_told(environment, tmp_path):
    output = run_ranks(environment, tmp_path, "checks")
    lines = [line.split()[:2] for line in output.splitlines() if line.startswith(("PASS", "FAIL"))]
    assert {verdict for verdict, _ in lines} == {"PASS"}, output
    assert {"fsdp_reduce_fp32", "fsdp_uneven", "fsdp_packed", "fsdp_async", "ddp_bf16", "errors"} <= {
        name for _, name in lines
    }


def test_a_step_is_measured_both_ways(environment, tmp_path):
    same, different = (
        json.loads(line) for line in run_ranks(environment, tmp_path, "bench").splitlines() if line.startswith("{")
    )
    assert [row["way"] for row in same["rows"]] == ["torch", "strait"]
    for row in same["rows"]:
        assert [len(turn) for turn in row["step_s"]] == [2, 2, 2]
        speed, x = row["tokens_per_s"], row["x"]
        assert 0 < speed["min"] <= speed["p50"] <= speed["max"] and 0 < x["min"] <= x["p50"] <= x["max"]
    assert same["rows"][0]["x"] == {"p50": 1.0, "min": 1.0, "max": 1.0}
    assert len(same["losses"]) == 7 and len(set(same["losses"])) == 7 and not same["different"]
    assert "all_gather bf16 0/" in bench_step.counts_of(same["report"])
    assert any("losses from step 0 on" in text for text in different["different"])
    assert any("parameter " in text for text in different["different"])


def test_groups_of_some_ranks_have_communicators_of_their_own(environment, tmp_path):
    output = run_ranks(environment, tmp_path, "groups", count=3)
    assert "PASS groups" in output


# ---- The bench ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, text",
    [
        ("--links shm,pipe", "no links 'pipe': there are as-is, shm, socket"),
        ("--steps 0", "--steps has to be 1 or more"),
        ("--batch x", "invalid int value"),
    ],
)
def test_the_bench_refuses(arguments, text, capsys):
    with pytest.raises(SystemExit):
        bench_step.parse(arguments.split())
    assert text in capsys.readouterr().err


def test_the_bench_needs_gpus():
    if torch.cuda.device_count() >= 2:
        pytest.skip("there are GPUs")
    done = subprocess.run(
        [sys.executable, "-m", "strait.bench_step"], capture_output=True, text=True, cwd=TREE / "python", timeout=100
    )
    assert done.returncode == 77 and "skipped: 0 GPUs, 2 are needed" in done.stdout


def result_of(links, preload, different=(), ranks=2):
    speed = {"p50": 1234.0, "min": 1000.0, "max": 1500.0}
    row = {
        "way": "preloaded" if preload else "strait",
        "tokens_per_s": speed,
        "x": {"p50": 1.25, "min": 1.2, "max": 1.3},
    }
    report = (
        "operation\nall_gather     bf16           24      21474836480          0        0       0         20    1 way"
    )
    return {
        "links": links,
        "ranks": ranks,
        "rows": [row],
        "losses": [1.0, 2.0],
        "different": list(different),
        "report": report,
    }


def test_all_links_are_told_and_one_that_fails_fails_the_bench(monkeypatch, capsys, tmp_path):
    asked = []

    def run_links(links, options, preload):
        asked.append((links, preload))
        if links == "socket" and preload:
            raise bench_step.Failure("socket: exit status 1\nNCCL error")
        return result_of(links, preload, ["rank 0: losses from step 3 on"] if links == "shm" and preload else [])

    monkeypatch.setattr(bench_step, "run_links", run_links)
    file = tmp_path / "step.json"
    assert bench_step.run_all(bench_step.parse(["--links", "as-is,shm", "--save", str(file)])) == 0
    output = capsys.readouterr().out
    assert "as-is   strait               1234      1000      1500   1.250" in output
    assert output.count("losses and parameters are the same after 2 steps; compressed: all_gather bf16 20/24") == 2
    assert [entry["links"] for entry in json.loads(file.read_text())["links"]] == ["as-is", "shm"]

    asked.clear()
    assert bench_step.run_all(bench_step.parse(["--links", "shm,socket", "--preload", "--json"])) == 1
    output = capsys.readouterr()
    assert "DIFFERENT after 2 steps" in output.err and "NCCL error" in output.err
    links = json.loads(output.out)["links"]
    assert asked == [(name, preload) for name in ("shm", "socket") for preload in (False, True)]
    assert [entry.get("failed", "") for entry in links] == ["", "", "", "socket: exit status 1\nNCCL error"]


def test_sums_of_more_ranks_may_differ():
    assert bench_step.is_wrong(result_of("shm", False, ["x"]))
    assert not bench_step.is_wrong(result_of("shm", False, ["x"], ranks=4))


def test_each_link_has_its_settings(monkeypatch):
    from strait import _nccl

    monkeypatch.setattr(_nccl, "path", lambda: "/lib/libstrait-coll.so.0")
    monkeypatch.setenv("LD_PRELOAD", "/lib/other.so")
    options = bench_step.parse(["--sms", "24"])
    plain, preloaded = (bench_step.environment_of("shm", options, preload) for preload in (False, True))
    assert plain["NCCL_P2P_DISABLE"] == "1" and "NCCL_SHM_DISABLE" not in plain
    assert plain["STRAIT_COLL_SMS"] == plain["NCCL_MAX_CTAS"] == "24"
    assert plain["LD_PRELOAD"] == "/lib/other.so"
    assert preloaded["LD_PRELOAD"] == "/lib/libstrait-coll.so.0 /lib/other.so"
    assert bench_step.environment_of("socket", options, False)["NCCL_SHM_DISABLE"] == "1"


def test_of_ranks_that_fail_the_reason_is_told():
    ranks = "Traceback\nRuntimeError: no driver"
    boilerplate = "E1128 api.py:1002] failed (exitcode: 1) local_rank: 1\nTraceback\nChildFailedError"
    assert bench_step.reason_of(f"{ranks}\n{boilerplate}") == ranks
    assert bench_step.reason_of(ranks) == ranks
