"""The plug-in in NIXL's own agents: they load it, and read and write each other's memory with it."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from agents import BYTES, make_agent, register, values

PAGE = 4096


class Target:
    """An agent in a process of its own."""

    def __init__(self, name, *options):
        script = Path(__file__).with_name("agents.py")
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, str(script), name, "7", *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        line = self.line()
        while len(line.split()) != 2 or not line.split()[1].isdigit():  # what NIXL logs
            line = self.line()
        metadata, address = line.split()
        self.metadata, self.address = bytes.fromhex(metadata), int(address)

    def line(self):
        line = self.process.stdout.readline()
        assert line, "the target has ended"
        return line.strip()

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.line()

    def end(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def target():
    target = Target("target")
    yield target
    target.end()


@pytest.fixture
def agent():
    agent = make_agent("initiator")
    yield agent


def descriptors(agent, begin, offsets, size):
    return agent.get_xfer_descs([(begin + int(offset), size, 0) for offset in offsets], "DRAM")


def prepare(agent, operation, array, own, target, theirs, size, note=b""):
    return agent.initialize_xfer(
        operation,
        descriptors(agent, array.ctypes.data, own, size),
        descriptors(agent, target.address, theirs, size),
        target.name,
        note,
        backends=["STRAIT"],
    )


def finish(agent, handle, seconds=30.0):
    end = time.monotonic() + seconds
    state = agent.transfer(handle)
    while state == "PROC":
        assert time.monotonic() < end
        state = agent.check_xfer_state(handle)
    return state


def offsets(seed, count, size):
    return np.random.default_rng(seed).permutation(BYTES // size)[:count] * size


def test_reads_and_writes_land_where_they_should(agent, target):
    array, theirs = np.zeros(BYTES, np.uint8), values(7)
    register(agent, array)
    agent.add_remote_agent(target.metadata)
    for size, count in ((PAGE, 1), (PAGE, 400), (64 << 10, 60), (2 << 20, 3)):
        own, far = offsets(1, count, size), offsets(2, count, size)
        array[:] = 0
        expected = array.copy()
        for to, start in zip(own, far):
            expected[to : to + size] = theirs[start : start + size]
        handle = prepare(agent, "READ", array, own, target, far, size, b"read")
        assert finish(agent, handle) == "DONE" and (array == expected).all()
        assert target.ask("notes") == "{'initiator': ['read']}"
        assert finish(agent, handle) == "DONE" and target.ask("notes") == "{'initiator': ['read']}"  # again
        agent.release_xfer_handle(handle)

        array[:] = values(9)
        handle = prepare(agent, "WRITE", array, own, target, far, size, b"written")
        assert finish(agent, handle) == "DONE"
        for to, start in zip(own, far):
            theirs[start : start + size] = array[to : to + size]
        weights = np.arange(1, BYTES // 8 + 1, dtype=np.uint64)
        assert target.ask("notes") == "{'initiator': ['written']}"
        assert int(target.ask("sum")) == int(np.bitwise_xor.reduce(theirs.view(np.uint64) * weights))
        agent.release_xfer_handle(handle)


def test_an_agent_reads_its_own_memory(agent):
    array = values(3)
    register(agent, array)
    own = [(array.ctypes.data, PAGE, 0)]
    other = [(array.ctypes.data + 8 * PAGE, PAGE, 0)]
    handle = agent.initialize_xfer(
        "READ", agent.get_xfer_descs(own, "DRAM"), agent.get_xfer_descs(other, "DRAM"), "initiator", backends=["STRAIT"]
    )
    assert finish(agent, handle) == "DONE"
    assert (array[:PAGE] == array[8 * PAGE : 9 * PAGE]).all()


def test_a_target_that_does_nothing_is_read(agent, target):
    array = np.zeros(BYTES, np.uint8)
    register(agent, array)
    agent.add_remote_agent(target.metadata)
    handle = prepare(agent, "READ", array, [0], target, [0], PAGE)
    assert finish(agent, handle) == "DONE"  # they know each other
    # its interpreter is blocked in a read of stdin: nothing but the plug-in's own threads runs there
    handle = prepare(agent, "READ", array, [0], target, [0], BYTES)
    assert finish(agent, handle) == "DONE" and (array == values(7)).all()


def test_what_is_not_whole_pages_is_refused(agent, target, capfd):
    array = np.zeros(BYTES, np.uint8)
    register(agent, array)
    agent.add_remote_agent(target.metadata)
    for own, theirs, size in ((8, 0, PAGE), (0, 8, PAGE), (0, 0, PAGE + 8)):
        with pytest.raises(Exception, match="NOT_SUPPORTED"):
            prepare(agent, "READ", array, [own], target, [theirs], size)
        assert "does not consist of pages of 4096 bytes (option page)" in capfd.readouterr().err


def test_pages_may_be_smaller():
    target, agent = Target("target", "page=64"), make_agent("initiator", page="64")
    try:
        array, theirs = np.zeros(1 << 20, np.uint8), values(7)
        register(agent, array)
        agent.add_remote_agent(target.metadata)
        handle = prepare(agent, "READ", array, [64, 640], target, [6400, 128], 192)
        assert finish(agent, handle) == "DONE"
        assert (array[64:256] == theirs[6400:6592]).all() and (array[640:832] == theirs[128:320]).all()
    finally:
        target.end()


@pytest.mark.parametrize("element", ["bytes", "bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2"])
def test_memory_of_each_element(element):
    target, agent = Target("target", f"element={element}"), make_agent("initiator", element=element)
    try:
        array = np.zeros(BYTES, np.uint8)
        register(agent, array)
        agent.add_remote_agent(target.metadata)
        handle = prepare(agent, "READ", array, [0], target, [0], BYTES)
        assert finish(agent, handle) == "DONE" and (array == values(7)).all()
    finally:
        target.end()


@pytest.mark.parametrize("both, transport", [(True, "shm"), (False, "tcp")])
def test_agents_with_sockets_use_shared_memory(tmp_path, both, transport):
    socket = str(tmp_path / "initiator.sock")
    agent = make_agent("initiator", socket=socket)
    target = Target("target", *([f"socket={tmp_path / 'target.sock'}"] if both else []))
    array = np.zeros(BYTES, np.uint8)
    register(agent, array)
    agent.add_remote_agent(target.metadata)
    handle = prepare(agent, "READ", array, [0], target, [0], BYTES)
    assert finish(agent, handle) == "DONE" and (array == values(7)).all()
    strait = Path(os.environ["STRAITD"]).parents[1] / "tools" / "strait"
    status = subprocess.run([strait, "status", "--socket", socket, "--json"], capture_output=True, text=True)
    (peer,) = json.loads(status.stdout)["peers"]
    assert peer["transport"] == transport
    target.end()


@pytest.mark.parametrize(
    "options", [{"page": "100"}, {"element": "fp17"}, {"role": "x"}, {"timeout": "0"}, {"no-such-option": "1"}]
)
def test_options_are_checked(options):
    with pytest.raises(Exception, match=r"BACKEND|INVALID"):
        make_agent("initiator", **options)


def test_memory_that_is_gone_is_not_read(agent, target):
    array = np.zeros(BYTES, np.uint8)
    register(agent, array)
    agent.add_remote_agent(target.metadata)
    assert target.ask("forget") == "forgotten"
    for operation in ("READ", "WRITE"):
        handle = prepare(agent, operation, array, [0], target, [0], PAGE)
        try:
            assert finish(agent, handle) == "ERR"
        except Exception as failure:  # NIXL raises what the back end reports
            assert "DISCONNECT" in str(failure) or "ALLOWED" in str(failure), failure
        agent.release_xfer_handle(handle)
    assert not array.any()


@pytest.mark.parametrize("operation", ["READ", "WRITE"])
def test_a_target_that_dies_is_told_of(agent, target, operation):
    array = np.zeros(BYTES, np.uint8)
    register(agent, array)
    agent.add_remote_agent(target.metadata)
    handle = prepare(agent, operation, array, [0], target, [0], PAGE)
    assert finish(agent, handle) == "DONE"
    target.process.send_signal(signal.SIGKILL)
    target.process.wait()
    began = time.monotonic()
    with pytest.raises(Exception, match=r"DISCONNECT|BACKEND"):
        assert finish(agent, handle) == "DONE"
    assert time.monotonic() - began < 15
    agent.release_xfer_handle(handle)


def test_a_request_is_given_up_while_it_runs(agent, target):
    array = np.zeros(BYTES, np.uint8)
    register(agent, array)
    agent.add_remote_agent(target.metadata)
    for operation in ("READ", "WRITE"):
        for _ in range(10):
            handle = prepare(agent, operation, array, [0], target, [0], BYTES)
            agent.transfer(handle)
            agent.release_xfer_handle(handle)
    handle = prepare(agent, "READ", array, [0], target, [0], PAGE)
    assert finish(agent, handle) == "DONE"


@pytest.fixture
def impatient():
    yield make_agent("initiator", timeout="1")


def write_to_a_stopped(agent, target, array):
    """A handle whose WRITE has failed for this agent, and which the target does not know of before it goes on."""
    register(agent, array)
    agent.add_remote_agent(target.metadata)
    handle = prepare(agent, "WRITE", array, [0], target, [0], PAGE, b"written")
    assert finish(agent, handle) == "DONE" and target.ask("notes") == "{'initiator': ['written']}"
    array[:PAGE] = 1
    target.process.send_signal(signal.SIGSTOP)
    os.waitpid(target.process.pid, os.WUNTRACED)  # all its threads have stopped
    with pytest.raises(Exception, match="DISCONNECT"):
        finish(agent, handle)
    return handle


def test_a_write_is_posted_again_when_the_last_one_has_ended(impatient, target):
    array = values(9)
    handle = write_to_a_stopped(impatient, target, array)
    with pytest.raises(Exception, match="REPOST_ACTIVE"):  # its answer would be taken for that of the new one
        impatient.transfer(handle)
    target.process.send_signal(signal.SIGCONT)
    end, state = time.monotonic() + 20, None
    while state is None:
        assert time.monotonic() < end
        try:
            state = finish(impatient, handle)
        except Exception as failure:
            assert "REPOST_ACTIVE" in str(failure), failure
            time.sleep(0.05)
    assert state == "DONE" and target.ask("notes") == "{'initiator': ['written']}"


def test_a_write_that_failed_is_released_when_the_target_has_ended_too(impatient, target):
    array, theirs = values(9), values(7)
    handle = write_to_a_stopped(impatient, target, array)
    with subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -CONT {target.process.pid}"]):
        began = time.monotonic()
        impatient.release_xfer_handle(handle)
        assert 0.4 < time.monotonic() - began < 10
    theirs[:PAGE] = array[:PAGE]
    array[:] = 0  # nothing reads it any more
    weights = np.arange(1, BYTES // 8 + 1, dtype=np.uint64)
    assert int(target.ask("sum")) == int(np.bitwise_xor.reduce(theirs.view(np.uint64) * weights))


def test_a_target_that_stays_away_does_not_hold_a_release_for_ever(impatient, target):
    array = values(9)
    handle = write_to_a_stopped(impatient, target, array)
    began = time.monotonic()
    impatient.release_xfer_handle(handle)
    assert time.monotonic() - began < 20
    target.process.send_signal(signal.SIGCONT)
    handle = prepare(impatient, "WRITE", array, [0], target, [PAGE], PAGE)  # the first page may be written late
    assert finish(impatient, handle) == "DONE"


def test_an_agent_that_is_started_again_writes(target):
    array = values(9)
    for _ in range(2):
        agent = make_agent("initiator", timeout="5")
        register(agent, array)
        agent.add_remote_agent(target.metadata)
        handle = prepare(agent, "WRITE", array, [0], target, [0], BYTES, b"written")
        assert finish(agent, handle) == "DONE" and target.ask("notes") == "{'initiator': ['written']}"
        agent.release_xfer_handle(handle)
        del agent


def test_a_target_of_many_writes_does_not_grow(agent, target):
    array = values(9)
    register(agent, array)
    agent.add_remote_agent(target.metadata)
    handle = prepare(agent, "WRITE", array, [0], target, [0], PAGE)

    def resident():
        return int(Path(f"/proc/{target.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    for _ in range(500):
        assert finish(agent, handle) == "DONE"
    before = resident()
    for _ in range(4000):
        assert finish(agent, handle) == "DONE"
    assert resident() - before < 2 << 20


def test_notes_arrive_in_order(agent, target):
    agent.add_remote_agent(target.metadata)
    for i in range(3):
        agent.send_notif("target", f"note {i}".encode())
    notes = []
    while len(notes) < 3:
        notes += ast.literal_eval(target.ask("notes")).get("initiator", [])
    assert notes == ["note 0", "note 1", "note 2"]


def test_all_plug_ins_are_found_by_one_line_of_shell(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "from nixl._api import nixl_agent, nixl_agent_config\n"
        "agent = nixl_agent('a', nixl_agent_config(backends=['UCX']))\n"
        "agent.create_backend('STRAIT', {'listen': '127.0.0.1:0'})\n"
        "print('both', len(agent.backends))\n"
    )
    script = f"""
        eval "$({sys.executable} -m strait.nixl "{tmp_path}/a folder")"
        {sys.executable} {program}
    """
    ran = subprocess.run(["bash", "-ec", script], capture_output=True, text=True)
    assert "both 2" in ran.stdout, ran.stderr
    environment = {**os.environ, "STRAIT_NIXL_PLUGIN": str(tmp_path / "missing.so")}
    failed = subprocess.run(
        [sys.executable, "-m", "strait.nixl", str(tmp_path / "other")], capture_output=True, text=True, env=environment
    )
    assert failed.returncode == 1 and "missing.so" in failed.stderr
