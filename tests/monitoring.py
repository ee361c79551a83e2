#!/usr/bin/env python3
"""monitoring.py STRAITD: what the alerts and the dashboard ask for is what a daemon exports.

Each metric, label and label value in deploy/prometheus/alerts.yaml and deploy/grafana/strait.json is looked for in the
metrics of a daemon that was just started, which has all its series from the beginning. Each alert has its section in
docs/runbook.md. Where promtool is there (Debian: prometheus) it checks the rules, too."""

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
WORDS = {"sum", "rate", "increase", "histogram_quantile", "min_over_time", "max", "by", "and", "on", "label_values", "count", "changes"}


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
    wrong += [f"docs/runbook.md: no alert {name}" for name in re.findall(r"\n## (\w+)\n", runbook) if name not in dict(alerts)]
    if len(alerts) < 10 or len(queries) < 30:
        wrong.append(f"only {len(alerts)} alerts and {len(queries)} queries were found")
    for metric in ("strait_no_such_metric", 'strait_peers{role="sink"}', "sum by (phase) (strait_peers)"):
        if not check(f"rate({metric}[1m])", series):  # the check itself
            wrong.append(f"{metric} was not refused")
    print("\n".join(wrong) or f"{len(alerts)} alerts and {len(queries) - len(alerts)} queries of the dashboard: all there")
    if shutil.which("promtool"):
        return subprocess.run(["promtool", "check", "rules", str(RULES)]).returncode or bool(wrong)
    print("promtool is not installed (Debian: prometheus): the rules' syntax was not checked by it")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
