#!/usr/bin/env python3
"""Spans for OpenTelemetry out of the lines that straitd logs of requests which belong to a trace.

    journalctl -fu straitd -o cat | python3 spans.py --endpoint http://127.0.0.1:4318/v1/traces
    python3 spans.py <straitd.log >spans.json

Each line with msg=span becomes a span, and each of its phases a child. They are posted to an OTLP/HTTP receiver, such
as that of the OpenTelemetry Collector, as JSON, at the latest a second after they were read; without --endpoint each
batch is written as a line of OTLP/JSON. A receiver that does not answer, or is busy, is tried again for half a minute;
then the batch is dropped, and the number of its spans told on stderr. Ids follow from the lines: what is read twice is
the same span. Needs Python 3.9, and nothing else. Exit status 1: something was dropped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import select
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

BATCH = 512  # spans
LATE = 1.0  # seconds until they are posted
TIMEOUT = 5.0
PATIENCE = 30.0  # seconds that a batch is tried for
BUSY = (429, 502, 503, 504)  # what OTLP says may be tried again

NUMBERS = ("pages", "raw_bytes", "wire_bytes", "left_out")
NO_ATTRIBUTES = (
    "ts",
    "level",
    "msg",
    "name",
    "trace_id",
    "span_id",
    "parent_id",
    "start_ns",
    "end_ns",
    "status",
    "cut",
)

_FIELD = re.compile(r'([\w.]+)=(?:"((?:[^"\\]|\\.)*)"|(\S*))')
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|(.))")
_SPECIAL = {"n": "\n", "r": "\r", "t": "\t"}


def fields_of(line: str) -> dict[str, str]:
    """The values of a logfmt line. A byte that is no ASCII is the character of that number."""

    def plain(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] else _SPECIAL.get(match[2], match[2])

    return {
        name: bare if quoted is None else _ESCAPE.sub(plain, quoted)
        for name, quoted, bare in (match.groups() for match in _FIELD.finditer(line))
    }


def _attribute(name: str, value: str) -> dict[str, Any]:
    return {"key": f"strait.{name}", "value": {"intValue" if name in NUMBERS else "stringValue": value}}


def _phases(parent: dict[str, Any], durations: list[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    """One after the other; the last one ends with the span, as microseconds were cut off."""
    at, end = int(parent["startTimeUnixNano"]), int(parent["endTimeUnixNano"])
    for number, (name, microseconds) in enumerate(durations):
        until = end if number == len(durations) - 1 else min(at + 1000 * microseconds, end)
        if microseconds > 0:
            yield {
                "traceId": parent["traceId"],
                "spanId": hashlib.sha256(f"{parent['spanId']} {name}".encode()).hexdigest()[:16],
                "parentSpanId": parent["spanId"],
                "name": f"{parent['name']}.{name}",
                "kind": 1,
                "startTimeUnixNano": str(at),
                "endTimeUnixNano": str(until),
            }
        at = until


def spans_of(line: str) -> list[dict[str, Any]]:
    """The span of a line and its phases; none: it is another line. KeyError, ValueError: not as straitd writes it."""
    fields = fields_of(line) if " msg=span " in line else {}
    if fields.get("msg") != "span":
        return []
    start, end = int(fields["start_ns"]), int(fields["end_ns"])
    for name, digits in (("trace_id", 32), ("span_id", 16), ("parent_id", 16)):
        if not re.fullmatch(f"[0-9a-f]{{{digits}}}", fields[name]):
            raise ValueError(f"{name} {fields[name]!r}")
    phases = [(name[6:-3], int(value)) for name, value in fields.items() if name.startswith("phase_")]
    span: dict[str, Any] = {
        "traceId": fields["trace_id"],
        "spanId": fields["span_id"],
        "parentSpanId": fields["parent_id"],
        "name": fields["name"],
        "kind": 1,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(end),
        "attributes": [
            _attribute(name, value)
            for name, value in fields.items()
            if name not in NO_ATTRIBUTES
            and not name.startswith("phase_")
            and (name not in NUMBERS or value.isdecimal())
        ],
    }
    if fields["status"] != "ok":
        span["status"] = {"code": 2, "message": fields.get("text") or fields.get("reason", "")}
    return [span, *_phases(span, phases)]


class Sender:
    """What was read, until it is posted or written."""

    def __init__(self, endpoint: str, service: str):
        self.endpoint, self.spans, self.dropped, self.since = endpoint, list[dict[str, Any]](), 0, 0.0
        names = {"service.name": service, "host.name": socket.gethostname()}
        self.resource = {"attributes": [{"key": k, "value": {"stringValue": v}} for k, v in names.items()]}

    def add(self, line: str) -> None:
        try:
            spans = spans_of(line)
        except (KeyError, ValueError) as failure:
            self.dropped += 1
            print(f"spans: not a span of straitd's ({failure}): {line[:200]}", file=sys.stderr)
            return
        self.since = self.since if self.spans else time.monotonic()
        self.spans += spans
        if len(self.spans) >= BATCH:
            self.flush()

    def left(self) -> float | None:
        """Seconds until the batch is due; None: it is empty."""
        return max(0.0, self.since + LATE - time.monotonic()) if self.spans else None

    def flush(self) -> None:
        spans, self.spans = self.spans, []
        if not spans:
            return
        scope = {"scope": {"name": "straitd"}, "spans": spans}
        text = json.dumps({"resourceSpans": [{"resource": self.resource, "scopeSpans": [scope]}]})
        if not self.endpoint:
            print(text, flush=True)
        elif why := self._post(text.encode()):
            self.dropped += len(spans)
            print(f"spans: {len(spans)} dropped: {self.endpoint}: {why}", file=sys.stderr)

    def _post(self, body: bytes) -> str:
        """Why it was not taken; "": it was."""
        request = urllib.request.Request(self.endpoint, body, {"Content-Type": "application/json"})
        end, pause = time.monotonic() + PATIENCE, 0.25
        while True:
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT):
                    return ""
            except urllib.error.HTTPError as refusal:
                why = f"{refusal.code} {refusal.reason}"
                if refusal.code not in BUSY:
                    return why
            except OSError as failure:
                why = str(failure)
            if time.monotonic() + pause > end:
                return why
            time.sleep(pause)
            pause = min(2 * pause, 5.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoint", default="", help="URL of an OTLP/HTTP receiver, with its path /v1/traces")
    parser.add_argument("--service", default="straitd", help="service.name of the spans (straitd)")
    options = parser.parse_args()
    sender, rest = Sender(options.endpoint, options.service), b""
    while True:
        ready, _, _ = select.select([0], [], [], sender.left())
        if not ready:
            sender.flush()
            continue
        piece = os.read(0, 1 << 16)
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            sender.add(line.decode(errors="replace"))
        if not piece:
            sender.add(rest.decode(errors="replace"))
            sender.flush()
            return 1 if sender.dropped else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
