#!/usr/bin/env python3
"""spans.py: what deploy/opentelemetry/spans.py makes of straitd's lines, as a receiver of OTLP/HTTP sees it.

Where Python's package opentelemetry-proto is there, the JSON is read by OpenTelemetry's own schema, too."""

import base64
import http.server
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "deploy/opentelemetry/spans.py"
TRACE, PARENT, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "2f8f3332630b4487"

IDS = f"trace_id={TRACE} parent_id={PARENT}"
DONE = (
    f"ts=2026-11-28T05:35:50.921Z level=info msg=span name=strait.offer {IDS} span_id={SPAN} "
    "start_ns=1795844150920907311 end_ns=1795844150921711589 status=ok key=r1 pages=8 raw_bytes=131072 "
    "wire_bytes=90112 peer=127.0.0.1:38797 transport=tcp coding=tiered phase_wait_us=484 phase_offer_us=0 "
    "phase_encode_us=89 phase_send_us=17 phase_end_us=214 left_out=3"
)
FAILED = (
    f"ts=2026-11-28T05:35:51.401Z level=info msg=span name=strait.expect trace_id={TRACE} span_id=4c1bdfd5fb73a2f8 "
    f"parent_id={PARENT} start_ns=1795844151192090750 end_ns=1795844151401057077 status=error reason=timeout "
    r'text="it said \"no\" = a\\b\xc3" key="1\x00 2\n" pages=8 raw_bytes=0 wire_bytes=0 phase_start_us=208966'
)
REFUSED = (
    f"ts=2026-11-28T05:35:51.401Z level=info msg=span name=strait.offer trace_id={TRACE} span_id=4c1bdfd5fb73a2f9 "
    f"parent_id={PARENT} start_ns=1795844151192090750 end_ns=1795844151192090750 status=error reason=busy key=k"
)
OTHERS = [
    "",
    "ts=2026-11-28T05:35:50.921Z level=info msg=ready",
    'ts=x level=warn msg="client refused" why="or msg=span too"',
]


taken: list = []  # (when, what) was posted
codes: list = []


class Receiver(http.server.BaseHTTPRequestHandler):
    """Answers with `codes`, and 200 after them."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        code = codes.pop(0) if codes else 200
        if code == 200:
            assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/json"
            taken.append((time.monotonic(), json.loads(body)))
        self.send_response(code)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def begin(*options):
    command = [sys.executable, str(SCRIPT), *options]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(lines, *options):
    process = begin(*options)
    out, err = process.communicate("\n".join(lines) + "\n", timeout=60)
    return process.returncode, out, err


def check_schema(document):
    """By OpenTelemetry's own definition, but for ids, which OTLP/JSON has in hexadecimal digits."""
    try:
        from google.protobuf import json_format
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    except ImportError:
        return
    copy = json.loads(json.dumps(document))
    for span in spans_in(copy):
        for name in ("traceId", "spanId", "parentSpanId"):
            span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    json_format.ParseDict(copy, ExportTraceServiceRequest())


def spans_in(document):
    return [s for r in document["resourceSpans"] for scope in r["scopeSpans"] for s in scope["spans"]]


def attributes_of(item):
    return {entry["key"]: next(iter(entry["value"].items())) for entry in item["attributes"]}


def test_a_line_becomes_a_span_with_its_phases():
    code, out, err = run([*OTHERS, DONE], "--service", "node7")
    assert (code, err) == (0, ""), err
    document = json.loads(out)
    check_schema(document)
    (resource,) = document["resourceSpans"]
    names = attributes_of(resource["resource"])
    assert names["service.name"] == ("stringValue", "node7") and names["host.name"][1]
    span, *phases = spans_in(document)
    assert (span["traceId"], span["spanId"], span["parentSpanId"]) == (TRACE, SPAN, PARENT)
    assert (span["name"], span["kind"], "status" in span) == ("strait.offer", 1, False)
    assert (span["startTimeUnixNano"], span["endTimeUnixNano"]) == ("1795844150920907311", "1795844150921711589")
    assert attributes_of(span) == {
        "strait.key": ("stringValue", "r1"),
        "strait.pages": ("intValue", "8"),
        "strait.raw_bytes": ("intValue", "131072"),
        "strait.wire_bytes": ("intValue", "90112"),
        "strait.peer": ("stringValue", "127.0.0.1:38797"),
        "strait.transport": ("stringValue", "tcp"),
        "strait.coding": ("stringValue", "tiered"),
        "strait.left_out": ("intValue", "3"),
    }
    assert [phase["name"] for phase in phases] == [f"strait.offer.{name}" for name in ("wait", "encode", "send", "end")]
    assert {(phase["traceId"], phase["parentSpanId"]) for phase in phases} == {(TRACE, SPAN)}
    assert len({phase["spanId"] for phase in phases} | {SPAN}) == 5
    times = [phases[0]["startTimeUnixNano"], *(phase["endTimeUnixNano"] for phase in phases)]
    assert times == [phase["startTimeUnixNano"] for phase in phases] + [span["endTimeUnixNano"]]
    assert times[0] == span["startTimeUnixNano"] and int(times[1]) - int(times[0]) == 484000
    assert out == run([DONE], "--service", "node7")[1]  # read twice, it is the same span


def test_a_failure_is_an_error_with_its_text():
    code, out, _ = run([FAILED, REFUSED])
    assert code == 0
    check_schema(json.loads(out))
    failed, phase, refused = spans_in(json.loads(out))
    assert failed["status"] == {"code": 2, "message": 'it said "no" = a\\b\xc3'}
    assert attributes_of(failed)["strait.key"] == ("stringValue", "1\0 2\n")
    assert attributes_of(failed)["strait.reason"] == ("stringValue", "timeout")
    assert phase["name"] == "strait.expect.start" and phase["endTimeUnixNano"] == failed["endTimeUnixNano"]
    assert refused["status"] == {"code": 2, "message": "busy"}


def test_what_is_not_as_straitd_writes_it_is_told_and_left_out():
    bad = [DONE.replace(TRACE, TRACE[1:]), DONE.replace("start_ns", "since"), FAILED.replace("end_ns=1", "end_ns=x")]
    code, out, err = run([*bad, REFUSED])
    assert code == 1 and err.count("not a span of straitd's") == 3, err
    assert len(spans_in(json.loads(out))) == 1


def test_batches_are_posted_when_they_are_full_or_a_second_old(endpoint):
    process = begin("--endpoint", endpoint)
    process.stdin.write((DONE + "\n") * 1000)
    process.stdin.flush()
    began = time.monotonic()
    while sum(len(spans_in(document)) for _, document in taken) < 5000 and time.monotonic() < began + 20:
        time.sleep(0.01)
    assert sum(len(spans_in(document)) for _, document in taken) == 5000
    assert len(taken) < 15
    process.stdin.write(REFUSED)  # the end comes before the end of the line
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert [span["spanId"] for span in spans_in(taken[-1][1])] == ["4c1bdfd5fb73a2f9"]
    check_schema(taken[0][1])


def test_a_busy_receiver_is_tried_again_and_a_refusal_is_not(endpoint):
    codes[:] = [503, 429]
    code, _, err = run([DONE], "--endpoint", endpoint)
    assert (code, err, len(taken)) == (0, "", 1)
    codes[:] = [400]
    code, _, err = run([DONE], "--endpoint", endpoint)
    assert code == 1 and "5 dropped" in err and "400" in err and len(taken) == 1, err


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    for name, test in tests:
        taken.clear()
        test(endpoint) if test.__code__.co_argcount else test()
        print(f"{name}: passed")
    server.shutdown()
    print(f"{len(tests)} passed, 0 failed")


if __name__ == "__main__":
    main()
