"""Spans of two daemons, posted by deploy/opentelemetry/spans.py to a receiver that reads them by OpenTelemetry's own
schema: each field of each span is compared with the daemon's line, and what clients know with both."""

import base64
import http.server
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("opentelemetry.proto", reason="opentelemetry-proto is not installed")

from daemons import Daemon, connect, export, until, verdicts
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from strait import service
from strait.service import Reason, State

SCRIPT = Path(__file__).resolve().parents[3] / "deploy/opentelemetry/spans.py"
NUMBERS = {"pages", "raw_bytes", "wire_bytes", "left_out"}
OF_SPAN = {"trace_id", "span_id", "parent_id", "name", "start_ns", "end_ns", "status"}  # fields, not attributes
OF_LINE = {"ts", "level", "msg"}
KEY = 'r "1"\n\\'


def words_of(line):
    """name=value pairs of a line as straitd writes it, read character by character."""
    at, found = 0, {}
    while at < len(line):
        name, _, rest = line[at:].partition("=")
        at += len(name) + 1
        value = ""
        if not rest.startswith('"'):
            value = rest.split(" ", 1)[0]
            at += len(value) + 1
        else:
            at += 1
            while line[at] != '"':
                if line[at] != "\\":
                    value, at = value + line[at], at + 1
                elif line[at + 1] == "x":
                    value, at = value + chr(int(line[at + 2 : at + 4], 16)), at + 4
                else:
                    value, at = value + {"n": "\n", "r": "\r", "t": "\t"}.get(line[at + 1], line[at + 1]), at + 2
            at += 2
        assert name not in found
        found[name] = value
    return found


class Receiver(http.server.BaseHTTPRequestHandler):
    """Takes what the schema allows, and nothing else."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/json")
            self.server.taken.append(decode(body))
            code, answer = 200, json_format.MessageToJson(ExportTraceServiceResponse())
        except Exception as failure:
            self.server.refused.append(repr(failure))
            code, answer = 400, json.dumps({"code": 3, "message": str(failure)})
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_):
        pass


def decode(body):
    """By way of protobuf's bytes. OTLP/JSON is that of protobuf, but for ids, which have hexadecimal digits."""
    document = json.loads(body)
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in ("traceId", "spanId", "parentSpanId"):
                    span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    parsed = json_format.ParseDict(document, ExportTraceServiceRequest(), ignore_unknown_fields=False)
    assert json_format.MessageToDict(parsed) == json_format.MessageToDict(
        json_format.ParseDict(json_format.MessageToDict(parsed), ExportTraceServiceRequest())
    )
    again = ExportTraceServiceRequest.FromString(parsed.SerializeToString())
    assert again == parsed
    return again


@pytest.fixture
def receiver():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.taken, server.refused = [], []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def nodes(tmp_path):
    daemons = []
    for name in ("source", "sink"):
        (tmp_path / name).mkdir()
        daemons.append(Daemon(tmp_path / name, "--transports", "tcp", "--coding", "base"))
        daemons[-1].start()
    yield daemons
    for daemon in daemons:
        daemon.stop(signal.SIGKILL)


class Worker:
    def __init__(self, daemon):
        self.client = service.Client(daemon.socket)
        values = np.frombuffer(service.alloc(64 * 4096), np.uint16).reshape(64, 16, 2, 64)
        bits = np.random.default_rng(1).standard_normal(values.shape, np.float32).view(np.uint32)
        values[:] = bits >> 16
        self.pool = self.client.register({("kv", 0): values})


def header(number):
    return f"00-{number:032x}-{number + 7:016x}-01"


def run_requests(source, sink):
    """What became of each, by the number of its trace: a transfer, a read, a timeout and an abort."""
    clients = [source.client, sink.client]
    connect(*clients)
    theirs = sink.client.import_peer(export(source))
    expected = {
        1: source.pool.offer(KEY, range(8), lease=20, last=True, trace=header(1)),
        2: sink.pool.expect("moved", range(8), deadline=20, trace=header(2)),
        4: sink.pool.expect("nobody", [20, 21], deadline=1, trace=header(4)),
        5: sink.pool.expect("given up", [30], deadline=20, trace=header(5)),
    }
    expected[2].start(theirs, KEY)
    expected[4].start(theirs, "no offer")
    source.pool.serve(range(40, 44))
    expected[3] = sink.pool.read(theirs, range(40, 43), range(40, 43), deadline=20, trace=header(3))
    done = [expected[number] for number in (1, 2, 3)]
    said = until(clients, lambda said: verdicts(said).keys() >= set(done), 30)
    expected[5].abort()  # the daemon knows it: what came later is done
    left = [expected[number] for number in (4, 5)]
    found = verdicts(said + until(clients, lambda more: verdicts(said + more).keys() >= set(left), 30))
    return {number: found[transfer] for number, transfer in expected.items()}


def lines_of(daemon, count):
    """The spans that a daemon has logged, at least so many."""
    end = time.monotonic() + 30
    while True:
        lines = [line for line in (daemon.folder / "log").read_text().splitlines() if " msg=span " in line]
        if len(lines) >= count:
            return [words_of(line) for line in lines]
        assert time.monotonic() < end, lines
        time.sleep(0.02)


def post(daemon, receiver):
    with (daemon.folder / "log").open() as log:
        endpoint = f"http://127.0.0.1:{receiver.server_port}/v1/traces"
        command = [sys.executable, str(SCRIPT), "--endpoint", endpoint, "--service", daemon.folder.name]
        done = subprocess.run(command, stdin=log, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr, receiver.refused) == (0, "", [])


def attributes_of(item):
    found = {entry.key: (entry.value.WhichOneof("value"), entry.value) for entry in item.attributes}
    assert len(found) == len(item.attributes)
    return {key: getattr(value, kind) for key, (kind, value) in found.items()}


def compare(line, span, phases):
    """All that is in the line is in the span and its phases, and nothing else."""
    assert line.keys() >= OF_SPAN | OF_LINE
    assert span.trace_id.hex() == line["trace_id"] and span.span_id.hex() == line["span_id"]
    assert span.parent_span_id.hex() == line["parent_id"] and span.name == line["name"]
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (int(line["start_ns"]), int(line["end_ns"]))
    assert span.kind == Span.SPAN_KIND_INTERNAL
    code = Status.STATUS_CODE_UNSET if line["status"] == "ok" else Status.STATUS_CODE_ERROR
    message = "" if line["status"] == "ok" else line.get("text", line["reason"])
    assert (span.status.code, span.status.message) == (code, message)
    durations = {name[6:-3]: int(value) for name, value in line.items() if name.startswith("phase_")}
    rest = {name: value for name, value in line.items() if name not in OF_SPAN | OF_LINE and name[:6] != "phase_"}
    assert attributes_of(span) == {
        f"strait.{name}": int(value) if name in NUMBERS else value for name, value in rest.items()
    }
    assert [phase.name for phase in phases] == [f"{line['name']}.{name}" for name, us in durations.items() if us > 0]
    at = span.start_time_unix_nano
    for phase in phases:
        assert (phase.trace_id, phase.parent_span_id) == (span.trace_id, span.span_id)
        assert phase.start_time_unix_nano == at and phase.kind == span.kind and not phase.attributes
        microseconds = durations[phase.name.rpartition(".")[2]]
        at = phase.end_time_unix_nano
        if phase is not phases[-1]:
            assert at - phase.start_time_unix_nano == 1000 * microseconds
    assert not phases or (list(durations)[-1] != phases[-1].name.rpartition(".")[2] or at == span.end_time_unix_nano)


def check_meaning(line, event):
    """What the client was told."""
    assert line["status"] == ("ok" if event.state == State.DONE else "error")
    assert (int(line["raw_bytes"]), int(line["wire_bytes"])) == (event.raw_bytes, event.wire_bytes)
    assert line.get("peer", "") == event.peer


def test_each_field_of_each_span_arrives(nodes, receiver):
    source, sink = (Worker(daemon) for daemon in nodes)
    events = run_requests(source, sink)
    logged = [lines_of(nodes[0], 1), lines_of(nodes[1], 4)]
    lines = {int(line["trace_id"], 16): line for each in logged for line in each}
    assert lines.keys() == events.keys() and sum(map(len, logged)) == len(lines)
    for daemon in nodes:
        post(daemon, receiver)
    assert len(receiver.taken) == 2
    spans = []
    for daemon, request in zip(nodes, receiver.taken):
        (resource,) = request.resource_spans
        (scope,) = resource.scope_spans
        assert attributes_of(resource.resource)["service.name"] == daemon.folder.name and scope.scope.name == "straitd"
        assert attributes_of(resource.resource)["host.name"]
        spans += scope.spans
    ids = [span.span_id for span in spans]
    assert len(set(ids)) == len(ids) and all(len(span.trace_id) == 16 and len(span.span_id) == 8 for span in spans)
    roots = {span.span_id: span for span in spans if span.name in ("strait.offer", "strait.expect", "strait.read")}
    assert len(roots) == len(lines)
    for root in roots.values():
        number = int(root.trace_id.hex(), 16)
        assert root.parent_span_id.hex() == f"{number + 7:016x}"
        compare(lines[number], root, [span for span in spans if span.parent_span_id == root.span_id])
        check_meaning(lines[number], events[number])
    assert all(span.span_id in roots or span.parent_span_id in roots for span in spans)
    names = ["offer", "expect", "read", "expect", "expect"]
    assert [lines[number]["name"] for number in sorted(lines)] == [f"strait.{name}" for name in names]
    assert lines[1]["key"] == KEY and lines[1]["coding"] == "base" and lines[2]["transport"] == "tcp"
    assert events[4].reason == Reason.TIMEOUT and lines[4]["reason"] == "timeout" and lines[5]["reason"] == "aborted"
    assert int(lines[3]["raw_bytes"]) == 3 * 4096 and int(lines[1]["pages"]) == 8


@pytest.mark.parametrize(
    "change",
    [
        {"traceid": "00"},
        {"traceId": "0af7651916cd43dd8448eb211c80319"},
        {"startTimeUnixNano": "1.5"},
        {"attributes": [{"key": "strait.pages", "value": {"intValue": "eight"}}]},
        {"status": {"code": "2.5"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_receiver_refuses_what_the_schema_does_not_know(change):
    """Without this the test above would show nothing."""
    span = {"traceId": "ab" * 16, "spanId": "cd" * 8, "parentSpanId": "ef" * 8, "startTimeUnixNano": "1"}
    body = lambda span: json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})  # noqa: E731
    assert decode(body(span)).resource_spans[0].scope_spans[0].spans[0].trace_id == b"\xab" * 16
    with pytest.raises((ValueError, json_format.ParseError)):
        decode(body({**span, **change}))
