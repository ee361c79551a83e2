#!/usr/bin/env python3
"""monitoring.py STRAITD: what the alerts and the dashboard ask for is what a daemon exports.

Each metric, label and label value in deploy/prometheus/alerts.yaml and deploy/grafana/strait.json is looked for in the
metrics of a daemon that was just started, which has all its series from the beginning. Each alert has its section in
docs/runbook.md. Where promtool is there (Debian: prometheus) it checks the rules, and that each alert is told of the
daemon that CASES lets fall ill, and of no other."""

import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RULES, DASHBOARD = ROOT / "deploy/prometheus/alerts.yaml", ROOT / "deploy/grafana/strait.json"
#: Of Prometheus itself, not of a daemon.
SCRAPED, OF_SERVER = {"up"}, {"instance", "job", "le"}
WORDS = {
    "or",
    "sum",
    "rate",
    "increase",
    "histogram_quantile",
    "min_over_time",
    "max",
    "by",
    "and",
    "on",
    "label_values",
    "count",
    "changes",
}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def metrics_of(straitd: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        options = ["--socket", f"{folder}/s", "--listen", "127.0.0.1:0", "--metrics", f"127.0.0.1:{port}"]
        with open(f"{folder}/log", "w") as log, subprocess.Popen([straitd, *options], stderr=log) as daemon:
            try:
                for _ in range(200):
                    try:
                        return urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
                    except OSError:
                        time.sleep(0.05)
                sys.exit(f"no metrics: {Path(folder, 'log').read_text()}")
            finally:
                daemon.terminate()


def series_of(text: str) -> dict[str, dict[str, set[str]]]:
    """Values of each label of each metric."""
    series: dict[str, dict[str, set[str]]] = {}
    for line in text.splitlines():
        match = re.match(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ", line)
        if match and not line.startswith("#"):
            labels = series.setdefault(match.group(1), {})
            for name, value in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match.group(2) or ""):
                labels.setdefault(name, set()).add(value)
    return series


def check(expression: str, series: dict[str, dict[str, set[str]]]) -> list[str]:
    """What the expression asks for that no daemon has."""
    wrong, grouped = [], re.findall(r"\b(?:by|on) ?\(([^)]*)\)", expression)
    bare = re.sub(r"\b(?:by|on) ?\([^)]*\)", "", expression)
    known: set[str] = set()
    for name, selector in re.findall(r"([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})?", re.sub(r"\[[^]]*\]", "", bare)):
        if name in WORDS or name in SCRAPED or name == "instance":
            continue
        if name not in series:
            wrong.append(f"there is no metric {name}")
            continue
        known |= set(series[name])
        for label, pattern in re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', selector):
            if label in OF_SERVER:
                continue
            for value in pattern.split("|"):
                if value not in series[name].get(label, set()):
                    wrong.append(f'{name} has no {label}="{value}"')
    for label in (label.strip() for group in grouped for label in group.split(",")):
        if label not in OF_SERVER and label not in known:
            wrong.append(f"no metric of the expression has the label {label}")
    return wrong


#: By alert: a series, its values minute by minute of a daemon that is ill and of one that is well (promtool's notation:
#: from, step and number of steps), and the minute at which the first has been ill for long enough.
CASES: dict[str, tuple[list[tuple[str, str, str]], int]] = {
    "StraitDaemonDown": ([("up", "0x9", "1x9")], 3),
    "StraitTransfersFail": (
        [
            ('strait_transfers_failed_total{reason="timeout"}', "0+2x20", "0x20"),
            ('strait_transfers_failed_total{reason="aborted"}', "0x20", "0+50x20"),
            ("strait_transfers_started_total", "0+100x20", "0+100x20"),
        ],
        15,
    ),
    "StraitPeersLost": ([("strait_peers_lost_total", "0+1x20", "0x9 1x9")], 12),
    "StraitAuthFailures": ([("strait_auth_failures_total", "0x5 1x9", "3x15")], 8),
    "StraitChunksForged": ([("strait_chunks_forged_total", "0x5 1x9", "0x15")], 8),
    "StraitGpuFailed": ([("strait_gpus_failed", "1x9", "0x9")], 2),
    "StraitSlotsQuarantined": ([("strait_slots_quarantined", "2x30", "2x4 0 2x25")], 9),
    "StraitPagesQuarantined": ([("strait_quarantined_pages", "2x30", "2x4 0 2x25")], 9),
    "StraitPeerFails": ([('strait_peer_failures_total{what="chunk",peer="p"}', "0+1x20", "0x8 2x12")], 12),
    "StraitTcpDespiteRdma": (
        [
            ('strait_peer_transport_connections{transport="tcp"}', "1x30", "1x30"),
            ("strait_rdma_active", "1x30", "0x30"),
        ],
        20,
    ),
    "StraitRestarts": ([("process_start_time_seconds", "1x2 200x4 500x4 900x9", "1x2 200x20")], 15),
    "StraitFewDescriptors": (
        [("process_open_fds", "900x20", "700x20"), ("process_max_fds", "1000x20", "1000x20")],
        8,
    ),
    "StraitOutOfDescriptors": ([('strait_accept_rests_total{listener="peers"}', "0x3 4x9", "4x12")], 5),
    "StraitClientsRefused": (
        [
            ('strait_clients_refused_total{reason="full"}', "0x3 4x9", "0x12"),
            ('strait_clients_refused_total{reason="stopping"}', "0x12", "0x3 4x9"),
        ],
        6,
    ),
    "StraitBusyLoop": (
        [
            ("strait_loop_cpu_seconds_total", "0+58x20", "0+58x20"),
            ("strait_chunk_raw_bytes_total", "7x20", "0+1000x20"),
        ],
        8,
    ),
    "StraitTransportSpins": ([('strait_transport_spinning{transport="ucx"}', "1x9", "0x9")], 3),
    "StraitLoopStalls": (
        [
            ('strait_loop_stall_seconds_bucket{le="0.1"}', "0+1x20", "0+100x20"),
            ('strait_loop_stall_seconds_bucket{le="1"}', "0+100x20", "0+100x20"),
            ('strait_loop_stall_seconds_bucket{le="+Inf"}', "0+100x20", "0+100x20"),
        ],
        15,
    ),
    "StraitCodebookDrift": (
        [
            ("strait_exponent_bits_total", "0+106x60", "0+104x60"),
            ("strait_exponent_bits_expected_total", "0+100x60", "0+100x60"),
        ],
        50,
    ),
    "StraitDenied": ([("strait_denied_total", "0+3x20", "0x5 8x15")], 12),
}
#: What it takes all daemons together to show.
TOGETHER = {
    "StraitVersionsDiffer": (
        [("strait_build_info", "1x400", 'version="1"'), ("strait_build_info", "1x400", 'version="2"')],
        365,
    )
}


def rule_of(rules: str, name: str) -> dict[str, str]:
    lines = r"(?:(?!- alert).*\n)*?"
    match = re.search(
        rf"- alert: {name}\n{lines}\s+labels: {{severity: (\w+)}}\n"
        r'\s+annotations: {summary: "(.*)", runbook: "(.*)"}',
        rules,
    )
    assert match, name
    return dict(zip(("severity", "summary", "runbook"), match.groups()))


def expected(rules: str, name: str, labels: dict[str, str]) -> dict[str, object]:
    """The alert as promtool has to find it."""
    rule = rule_of(rules, name)
    summary = re.sub(r"{{ \$labels\.(\w+) }}", lambda match: labels[match.group(1)], rule["summary"])
    return {
        "exp_labels": labels | {"severity": rule["severity"]},
        "exp_annotations": {"summary": summary, "runbook": rule["runbook"]},
    }


def with_labels(series: str, more: str) -> str:
    return f"{series[:-1]},{more}}}" if series.endswith("}") else f"{series}{{{more}}}"


def alert_tests(rules: str) -> list[dict[str, object]]:
    tests: list[dict[str, object]] = []
    for name, (rows, minute) in CASES.items():
        inputs, labels = [], {"job": "strait", "instance": "ill"}
        for series, ill, well in rows:
            for instance, values in (("ill", ill), ("well", well)):
                inputs.append({"series": with_labels(series, f'job="strait",instance="{instance}"'), "values": values})
        labels |= dict(re.findall(r'(\w+)="([^"]*)"', rows[0][0]))
        expression = re.search(rf"- alert: {name}\n\s+expr: (.*)", rules)
        assert expression, name
        grouped = re.match(r"(?:histogram_quantile\([\d.]+, )?(?:sum|max) by \(([^)]*)\)", expression.group(1))
        if grouped:
            kept = {label.strip() for label in grouped.group(1).split(",")} - {"le"}
            labels = {label: value for label, value in labels.items() if label in kept}
        alerts = {"alertname": name, "eval_time": f"{minute}m", "exp_alerts": [expected(rules, name, labels)]}
        tests.append({"interval": "1m", "input_series": inputs, "alert_rule_test": [alerts]})
    for name, (rows, minute) in TOGETHER.items():
        inputs = [
            {"series": f'{series}{{job="strait",instance="{number}",{label}}}', "values": values}
            for number, (series, values, label) in enumerate(rows)
        ]
        for count, found in ((1, []), (2, [expected(rules, name, {})])):
            alerts = {"alertname": name, "eval_time": f"{minute}m", "exp_alerts": found}
            tests.append({"interval": "1m", "input_series": inputs[:count], "alert_rule_test": [alerts]})
    return tests


def promtool(rules: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        tests = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": alert_tests(rules)}
        Path(folder, "tests.yaml").write_text(json.dumps(tests, indent=1))  # JSON is YAML
        return (
            subprocess.run(["promtool", "check", "rules", str(RULES)]).returncode
            or subprocess.run(["promtool", "test", "rules", f"{folder}/tests.yaml"]).returncode
        )


def main(straitd: str) -> int:
    series = series_of(metrics_of(straitd))
    rules, runbook = RULES.read_text(), (ROOT / "docs/runbook.md").read_text()
    alerts = re.findall(r"- alert: (\w+)\n\s+expr: (.*)", rules)
    queries = [(name, expression) for name, expression in alerts]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        queries += [(panel["title"], target["expr"]) for target in panel["targets"]]
    wrong = [f"{name}: {what}" for name, expression in queries for what in check(expression, series)]
    wrong += [f"docs/runbook.md has no section {name}" for name, _ in alerts if f"\n## {name}\n" not in runbook]
    wrong += [f"{name}: no link to its section" for name, _ in alerts if f"docs/runbook.md#{name.lower()}" not in rules]
    wrong += [
        f"docs/runbook.md: no alert {name}" for name in re.findall(r"\n## (\w+)\n", runbook) if name not in dict(alerts)
    ]
    wrong += [f"{name} has no case here" for name, _ in alerts if name not in CASES | TOGETHER]
    if len(alerts) < 10 or len(queries) < 30:
        wrong.append(f"only {len(alerts)} alerts and {len(queries)} queries were found")
    for metric in ("strait_no_such_metric", 'strait_peers{role="sink"}', "sum by (phase) (strait_peers)"):
        if not check(f"rate({metric}[1m])", series):  # the check itself
            wrong.append(f"{metric} was not refused")
    print(
        "\n".join(wrong) or f"{len(alerts)} alerts and {len(queries) - len(alerts)} queries of the dashboard: all there"
    )
    if shutil.which("promtool"):
        return promtool(rules) or bool(wrong)
    print("promtool is not installed (Debian: prometheus): whether the alerts fire was not tried")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
