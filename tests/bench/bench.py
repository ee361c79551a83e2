#!/usr/bin/env python3
"""Benches on a few megabytes: each runs to its end, its JSON has the documented columns, and its check fails when a bit is
wrong. GPUs are threads and host memory, NCCL is fakes/nccl_processes.c; figures mean nothing.

  bench.py STRAIT TEST_BENCH LIBSTRAIT_COLL NCCL PATHS

PATHS: those of `strait bench transfer` that this build has.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

strait, gpu, coll, nccl, paths = sys.argv[1:]
slice_ = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "kv-slice.safetensors")
SMALL = ["--daemon", "arena-bytes=64M"]  # touching all of the usual one takes time
CODEC, TRANSFER = [strait, "bench", "codec"], [strait, "bench", "transfer", *SMALL]
HOSTS = [strait, "bench", "hosts", *SMALL]
DEVICE = [gpu, "transfer", *SMALL]
COLLECTIVE = [gpu, "collective", "--library", coll, "--nccl", nccl, "--iterations", "3", "--repeats", "2"]
for name in [name for name in os.environ if name.startswith("STRAIT_COLL")]:
    del os.environ[name]


def run(status, text, command, environment=None, inputs=slice_):
    """Runs a bench, which exits so and says so; returns its stdout."""
    command = command + (["--input", inputs] if inputs else [])
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(environment or {})}, check=False)
    assert done.returncode == status and text in done.stderr, f"{command}: {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def report(command, environment=None, inputs=slice_):
    found = json.loads(run(0, "", command + ["--json"], environment, inputs))
    assert found["commit"] and found["machine"]["cpu"] and found["command"], found
    return found


def has(row, keys):
    missing = [key for key in keys.split() if key not in row]
    assert not missing, f"no {missing} in {row}"


def check_codec():
    small = ["--size", "1M", "--repeats", "2", "--variant", "scalar"]
    found = report(CODEC + small + ["--page", "16K", "-T", "2"])
    assert 0 <= found["data"]["tiered_escape_rate"] < found["data"]["top16_escape_rate"] < 1
    assert len(found["codebook"]["id"]) == 32
    rows = [row for row in found["rows"] if row["case"] != "order-0 limit"]
    assert [row["mode"] for row in rows] == 2 * ["-", "-", "raw", "top16", "tiered"] and len(found["rows"]) == 12
    for row in rows:
        has(row, "variant threads page_bytes raw_bytes coded_bytes table_bytes processors_used")
        for what in "encode", "decode":
            assert row[f"{what}_GBps"]["min"] <= row[f"{what}_GBps"]["p50"] <= row[f"{what}_GBps"]["max"], row
            assert len(row[f"{what}_ns"]) == 2 and row[f"{what}_by_memcpy"] > 0, row
            assert (f"{what}_by_one_thread" in row) == (row["threads"] == 2), row
        assert row["check"] is True and (row["case"] == "strait" or row["ratio"] == 1), row
    assert sum(row["baseline"] for row in rows) == 2
    assert 1.3 < rows[4]["ratio"] < 1.6 and abs(rows[4]["raw_bytes"] / rows[4]["ratio"] - rows[4]["coded_bytes"] -
                                                rows[4]["table_bytes"]) < 1, rows[4]
    text = run(0, "", CODEC + small)
    for heading in "case", "coded bytes", "encode GB/s", "by memcpy", "check":
        assert heading in text, text
    assert " ok" in text and "WRONG" not in text, text
    assert "WRONG" in run(1, "not what was sent", CODEC + small + ["--fault", "flip"])
    run(2, "larger than --chunk", CODEC + ["--page", "32K", "--chunk", "16K"])
    run(2, "multiple of 16", CODEC + ["--page", "4097"])
    run(2, "unknown value", CODEC + ["--mode", "best"])
    run(2, "exclude each other", CODEC + ["--codebook", "x", "--calib", "y"])
    run(2, "takes options only", CODEC + ["file"])


def check_checkpoint():
    with tempfile.TemporaryDirectory() as folder:
        small = [strait, "bench", "checkpoint", "--size", "3M", "--repeats", "2", "--ranks", "2", "--folder", folder]
        found = report(small)
        assert [(row["mode"], row["io"]) for row in found["rows"]] == [
            ("raw", "direct"), ("raw", "cached"), ("coded", "direct"), ("coded", "cached")], found["rows"]
        for row in found["rows"]:
            has(row, "threads seconds encode_seconds write_seconds encode_thread_GBps by_longest")
            assert row["check"] is True and row["ranks"] == 2 and row["raw_bytes"] >= 6 << 20, row
            assert row["GBps"]["min"] <= row["GBps"]["p50"] <= row["GBps"]["max"], row
            assert row["ratio"] > 1.3 if row["mode"] == "coded" else 0.99 < row["ratio"] < 1, row
        assert "WRONG" in run(1, "not what was sent", small + ["--mode", "coded", "--fault", "flip"])
        run(1, "No such file", small + ["--folder", folder + "/none"])
        run(2, "takes one --input", small + ["--input", slice_])
        assert os.listdir(folder) == []


def check_ep():
    small = [strait, "bench", "ep", "--tokens", "7", "--hidden", "256", "--experts", "8", "--topk", "3", "--repeats", "3"]
    found = report([*small, "--ranks", "4", "--layout", "expert-major,rank-major,flat", "--types", "bf16,fp8", "--coding",
                    "raw,coded", "--skew", "uniform,one"])
    assert found["ranks"] == 4 and found["device"] == "host" and len(found["rows"]) == 4 * 2 * 2 * 2, found
    for row in found["rows"]:
        has(row, "algorithm layout type rows selections dispatch_GBps combine_GBps dispatch_selected_GBps arena_bytes medium")
        assert row["wrong"] == 0 and row["coded"] == (row["coding"] == "coded"), row
        assert 0 < row["rows"] <= row["selections"] and (row["skew"] != "one" or row["rows"] == 28), row
        for phase in "update_ns", "dispatch_ns", "combine_ns":
            assert 0 < row[phase]["p50"] <= row[phase]["p99"] <= row[phase]["max"], row
        assert row["ratio"] > 1.1 if row["coded"] else row["ratio"] == 1, row
    assert "WRONG" in run(1, "not what was sent", [*small, "--fault", "flip"])
    run(2, "cannot be divided", [*small, "--ranks", "3"])
    run(2, "nothing in common", [*small, "--algorithm", "ll", "--layout", "flat"])
    run(2, "--topk 9 of --experts 8", [*small, "--topk", "9"])


def check_transfer():
    count = len(paths.split(","))
    small = ["--pages", "16", "--repeats", "2", "--samples", "2"]
    found = report(TRANSFER + small + ["--path", paths, "--page", "16K", "--coding", "raw,top16,tiered,auto", "--direction",
                                       "pull,push", "--requests", "2", "--regions", "0", "--no-rivals"])
    assert len(found["rows"]) == 2 + 8 * (count - 1), found
    for row in found["rows"]:
        has(row, "path coding direction page_bytes pages regions requests bytes samples_per_turn by_base base transport")
        has(row["ms"], "p50 p90 p99")
        has(row["GBps"], "p50 min max")
        has(row["stages_ms"], "queue encode wire decode copy")
        has(row["phases_us"], "start connect answer chunks decode verdict source_offer source_encode source_send source_end")
        assert row["wrong_pages"] == 0 and len(row["ns"]) == 4 and len(row["request_ns"]) == 8 and min(row["ns"]) > 0, row
        assert row["path"] == "local" or row["chunks"] >= 1 and (
            1.3 < row["ratio"] < 1.6 if row["coding"] == "tiered" else row["ratio"] > 0.9), row
        assert row["path"] != "shm" or row["transport"] == "shm", row
    found = report(TRANSFER + small + ["--path", "local,shm", "--page", "4K,16K", "--idle", "1"])
    assert [row["case"] for row in found["rows"]] == 2 * ["memcpy", "strait", "strait"] and len(found["idle"]) == 2
    assert all(row["by_base"] > 0 and row["base"] == "memcpy" for row in found["rows"] if row["case"] == "strait")
    found = report(TRANSFER + small + ["--path", "local", "--page", "4K", "--no-rivals", "--poll", "--gap", "400000"])
    assert all(ns < 300e6 for row in found["rows"] for ns in row["ns"]), found  # the gap is before the start
    one = TRANSFER + ["--path", "local", "--pages", "1", "--repeats", "1", "--no-rivals"]
    assert "WRONG" in run(1, "not what was sent", one + ["--fault", "flip"])
    run(1, "ended with status 2", one + ["--daemon", "chunk-bytes=1"])
    run(1, "STRAITD names no program", one, {"STRAITD": "/nonexistent"})
    run(1, "refused a pool", one + ["--page", "1M", "--daemon", "pool-bytes=64K"])
    run(2, "name=value", one + ["--daemon", "x"])


@contextlib.contextmanager
def serving():
    """A bench that serves 16 pages; yields its port."""
    command = [*HOSTS, "--serve", "--port", "0", "--pages", "16", "--page", "16K", "--input", slice_]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            said = server.stdout.readline()
            assert said.startswith("serves 16 pages of 16384 bytes at port ") and said.endswith(" until interrupted\n"), said
            yield said.split()[-3]
        finally:
            server.send_signal(signal.SIGINT)
            assert server.wait(20) == 0, server.stdout.read()


def talk(port, *lines):
    """What is answered to lines of a stranger."""
    with socket.create_connection(("127.0.0.1", int(port)), 20) as stranger, stranger.makefile("rwb") as file:
        told = [file.readline()]
        for line in lines:
            file.write(line)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                file.flush()
                told.append(file.readline())
        return told


def pretend(*parts):
    """Runs a reader against a host that sends this, and closes; returns what it says."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [*HOSTS, "--peer", "127.0.0.1", "--port", str(listener.getsockname()[1]), "--pages", "1"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as reader:
            connection, _ = listener.accept()
            with connection:
                for part in parts:
                    connection.sendall(part)
                connection.shutdown(socket.SHUT_WR)
                said = reader.stderr.read()
            assert reader.wait(30) == 1, said
    return said


def check_hosts():
    with serving() as port:
        read = [*HOSTS, "--port", port, "--pages", "1,16", "--repeats", "2", "--samples", "2", "--peer"]
        for host, name in ("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("127.0.0.2", "127.0.0.2"):
            found = report([*read, host, "--coding", "raw,tiered", "--daemon", "transports=tcp"], inputs=None)
            assert found["peer"] == name and [row["pages"] for row in found["rows"]] == [1, 1, 16, 16], found
            for row in found["rows"]:
                assert row["wrong_pages"] == 0 and row["page_bytes"] == 16384 and len(row["ns"]) == 4, row
                assert 1.2 < row["ratio"] < 1.6 and row["x_raw"] > 0 if row["coding"] == "tiered" else row["ratio"] > 0.9, row
        assert "WRONG" in run(1, "not what was sent", [*read, "127.0.0.1", "--fault", "flip"], inputs=None)
        run(1, "serves 16 pages", [*read, "127.0.0.1", "--pages", "17"], inputs=None)
        with tempfile.NamedTemporaryFile("w") as secret:  # which the other host does not have
            secret.write("0123456789abcdef" * 4)
            secret.flush()
            run(1, "a secret is demanded", [*read, "127.0.0.1", "--daemon", "transports=tcp", "--daemon", f"secret-file={secret.name}"],
                inputs=None)
        [first, *rest] = talk(port, b"coding tiered\n", b"coding raw\n", b"coding best\n")
        document = json.loads(first)
        assert rest == [b"ok\n", b"ok\n", b""] and document["pages"] == 16, rest
        assert talk(port, b"x" * 100)[1:] == [b""]
        report([*read, "127.0.0.1"], inputs=None)  # it still serves
    for spoiled in (b"", b"\n", b"{}\n", b"[1]\n", b"no JSON\n", b"{" * 100000 + b"\n", first[:-100], first[: len(first) // 2] + b"\n",
                    *(json.dumps({**document, key: value}).encode() + b"\n" for key, value in (
                        ("bench_hosts", 2), ("page_bytes", 17), ("page_bytes", 1e30), ("pages", 0), ("pages", 1 << 20), ("pages", 15),
                        ("pages", 1.5), ("sums", "zz"), ("sums", 5), ("sums", document["sums"][1:]), ("codebook", "00"),
                        ("codebook", None), ("pool", "0"), ("pool", "00"), ("pool", document["pool"][:-2])))):
        said = pretend(spoiled)
        assert any(text in said for text in ("has closed the connection", "does not run this version", "cannot be taken")), (spoiled, said)
    run(1, "does strait bench hosts --serve run there", [*HOSTS, "--peer", "127.0.0.1", "--port", "1"], inputs=None)
    run(2, "one of --serve and --peer", HOSTS)
    run(2, "one of --serve and --peer", [*HOSTS, "--serve", "--peer", "x"])


def check_device():
    found = report(DEVICE + ["--size", "1M,2M", "--repeats", "2", "--warmups", "1"])
    assert [device["number"] for device in found["devices"]] == [0, 1] and found["source_whole"]
    assert [row["case"] for row in found["rows"]] == 2 * (["copy", "events"] + 8 * ["strait"])
    for row in found["rows"]:
        assert row["wrong"] == 0 and len(row["ns"]) == 2 and min(row["ns"]) > 0, row
        assert row["GBps"]["p10"] <= row["GBps"]["p50"] <= row["GBps"]["p90"], row
        if row["case"] == "strait":
            has(row, "path wire wires transport policy x_raw wall_ms stages_by_wall")
            assert row["x_copy"] > 0 and row["stages_ms"]["encode"] > 0 and row["chunks"] >= 1, row
            assert abs(row["wire_bytes"] * row["ratio"] / row["bytes"] - 1) < 0.001, row
            assert row["coding"] != "tiered" or 1.3 < row["ratio"] < 1.6, row
    for several, pairs, requests, devices in (["--sinks", "3"], 3, 1, [0, 1, 0, 1]), (["--sources", "2", "--requests", "2"], 2, 2,
                                                                                      [0, 1, 1]):
        found = report(DEVICE + several + ["--size", "1M", "--repeats", "2", "--warmups", "1", "--coding", "raw,tiered"])
        assert [device["number"] for device in found["devices"]] == devices and found["source_whole"], found
        assert [(row["case"], row["pairs"]) for row in found["rows"]] == [
            (case, way) for way in ("at once", "in turn") for case in ["copy"] + 4 * ["strait"]], found
        for row in found["rows"]:
            assert row["wrong"] == 0 and row["all_bytes"] == pairs * requests * row["bytes"] and len(row["ns"]) == 2, row
            assert ((row.get("x_in_turn") or 0) > 0) == (row["pairs"] == "at once"), row
            if row["case"] == "strait":
                assert abs(row["wire_bytes"] * row["ratio"] / row["all_bytes"] - 1) < 0.001 and row["x_copy"] > 0, row
                assert len(row["request_ns"]) == 2 * pairs * requests, row
                assert 0 < row["request_ms"]["p50"] <= row["request_ms"]["p99"] <= max(row["ns"]) * 1.001e-6, row
                assert ("spread" in row) == (row["pairs"] == "at once") and row.get("spread", {"min": 1})["min"] >= 1, row
    assert "WRONG" in run(1, "not what was sent", DEVICE + ["--sinks", "2", "--size", "1M", "--repeats", "1", "--fault", "flip"])
    run(2, "exclude each other", DEVICE + ["--sinks", "2", "--sources", "2"])
    small = DEVICE + ["--wires", "pinned", "--coding", "raw", "--size", "1M", "--repeats", "1"]
    if os.environ.get("BENCH_NCCL") == "1":
        [row] = [row for row in report(small + ["--wires", "nccl"])["rows"] if row.get("path") == "nccl"]
        assert "nccl" in row["wire"] and row["wires"]["nccl"] > 0, row
    with tempfile.TemporaryDirectory() as folder:
        saved = os.path.join(folder, "saved.json")
        assert run(0, "", small + ["--json", "--save", saved]) == open(saved, encoding="utf-8").read()
        open(saved, "w", encoding="utf-8").write("old")
        run(1, "ended with status 2", small + ["--daemon", "chunk-bytes=1", "--save", saved])
        assert open(saved, encoding="utf-8").read() == "old"
    assert run(1, "cannot be written: No such file", small + ["--save", "/nonexistent/file"]) == ""
    assert "WRONG" in run(1, "not what was sent", small + ["--fault", "flip"])
    run(1, "no GPU", small, {"FAKE_NO_GPU": "1"})
    run(1, "there are GPUs 0 to 1", small + ["--to-gpu", "2"])
    run(1, "has 1 to", DEVICE + ["--size", "16"])


def tensors(path):
    """Tensors whose names say what they are of."""
    header, data = {}, b""
    for name, dtype, bits in (("input_layernorm.weight", "BF16", 0x3f80), ("q_proj.weight.grad", "BF16", 0x3a01),
                              ("mlp_input", "BF16", 0x4002), ("q_proj.exp_avg", "F32", 0x3903),
                              ("q_proj.exp_avg_sq", "F32", 0x3804)):
        values = struct.pack("<H", bits) * 4096 if dtype == "BF16" else struct.pack("<I", bits << 16) * 4096
        header[name] = {"dtype": dtype, "shape": [4096], "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def check_collective():
    found = report(COLLECTIVE + ["--size", "64K", "--types", "bf16,fp32-bf16", "--data", "tensors,random"])
    assert found["ranks"] == 2 and found["nccl_version"] == 23203 and len(found["rows"]) == 24, found
    for row in found["rows"]:
        has(row, "links data type operation bytes iterations way calls compressed wire_bytes ratio")
        assert row["wrong"] == 0 and row["x_min"] <= row["x"] <= row["x_max"] and row["way"].startswith("raw: "), row
        assert row["calls"] % 9 == 0, row  # 3 to begin with, and 3 in each of 2 repeats; send and receive
        for way in row["nccl"], row["strait"]:
            factor = 1 if row["operation"] in ("all_reduce", "sendrecv", "broadcast") else 0.5
            assert abs(way["busbw_GBps"] / way["algbw_GBps"] - factor) < 1e-9, row
            slow = sorted(max(ranks) for ranks in way["ns"])
            assert len(slow) == 2 and abs(way["p50_ns"] - sum(slow) / 2) < 1, row
    small = COLLECTIVE + ["--size", "64K", "--types", "bf16", "--ops", "all_gather"]
    three = {"FAKE_GPUS": "3"}  # sums in the order of the ranks, of sizes that are not divided by three
    rows = report(COLLECTIVE + ["--size", "100000"], three)["rows"]
    assert [row["data"] for row in rows] == 12 * ["other"]
    report(small + ["--types", "fp16", "--ops", "all_to_all"])  # of BF16 tensors, rounded
    report(small + ["--ops", "reduce_scatter", "--env", "STRAIT_COLL=raw"], {**three, "FAKE_NCCL_BACKWARDS": "1"})
    rows = report(small + ["--links", "as-is,shm,socket", "--singles", "5", "--env", "STRAIT_COLL=raw"])["rows"]
    assert [row["links"] for row in rows] == ["as-is", "shm", "socket"]
    for row in rows:
        single = row["singles"]
        assert 0 < single["strait_p50_ns"] <= single["strait_max_ns"] and 1 <= single["slowest"] <= 5, single
        assert 0 < single["nccl_p50_ns"] <= single["nccl_max_ns"], single
    found = report(small + ["--gpus", "1", "--ranks", "3"])
    assert found["gpus"] == 1 and found["ranks"] == 3, found
    hosts = small + ["--gpus", "2", "--ranks", "4", "--hosts"]  # ranks 0 and 1 on one, 2 and 3 on the other
    assert report(hosts + ["2"], {"FAKE_NCCL_HOSTS": "2"})["hosts"] == 2
    run(1, "ncclCommInitRank", hosts + ["4"], {"FAKE_NCCL_HOSTS": "2"})
    run(1, "there are 4 ranks", hosts + ["5"])
    with tempfile.TemporaryDirectory() as folder:
        kinds = os.path.join(folder, "kinds.safetensors")
        tensors(kinds)
        rows = report(small + ["--types", "fp32,fp32-bf16"], None, kinds)["rows"]
        assert sorted((row["data"], row["type"]) for row in rows) == sorted(
            [(data, type_) for data in ("weights", "gradients", "activations") for type_ in ("bf16", "fp32-bf16")] +
            [("moments", "fp32"), ("squares", "fp32")]), rows
        run(1, "no values for moments", small + ["--data", "moments,weights"], None, kinds)
    assert "WRONG" in run(1, "not what was sent", small + ["--fault", "flip"])
    run(1, "not what was sent", small + ["--ops", "all_reduce", "--fault", "flip"], three)
    run(1, "not what was sent", small + ["--repeats", "3"], {"FAKE_NCCL_SPOIL": "12"})
    run(1, "rank 1 ended with exit status 3", small, {"FAKE_NCCL_DIE": "9"})
    # NCCL's calls of a row: 3 and 3 to begin with, 3 in each of two repeats. The 14th is in the second row.
    text = run(1, "rank 1 warms up by NCCL alone: all_gather of other bf16, 1048576 bytes", small + ["--size", "1M", "--timeout",
               "1"], {"FAKE_NCCL_HANG": "14"})
    assert " 64K " in text and text.count(" all_gather  ") == 1, text
    run(1, "no GPU", small, {"FAKE_NO_GPU": "1"})
    run(1, "need two", small, {"FAKE_GPUS": "1"})
    run(1, "cannot open", small + ["--library", "/nonexistent/libstrait-coll.so.0"])
    run(1, "not NCCL", small + ["--nccl", coll])
    run(2, "NAME=VALUE", small + ["--env", "STRAIT_COLL"])


for check in check_codec, check_checkpoint, check_ep, check_transfer, check_hosts, check_device, check_collective:
    began = time.monotonic()
    check()
    print(f"{check.__name__}: {time.monotonic() - began:.1f} s")
print("bench: all passed")
