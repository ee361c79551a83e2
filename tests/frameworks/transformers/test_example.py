"""The example of two processes: over loopback, and as root over a link that is limited."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "disaggregated" / "transformers_pd.py"
CAN_LIMIT = os.geteuid() == 0 and shutil.which("ip") and shutil.which("tc")


def run(*options):
    return subprocess.run(
        [sys.executable, str(EXAMPLE), *map(str, options)], capture_output=True, text=True, timeout=240, check=False
    )


def test_tokens_are_those_of_one_process(tmp_path):
    plot = tmp_path / "times.svg"
    ran = run("--tokens", 200, "--repeat", 2, "--plot", plot, "--json")
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout)
    assert found["wrong"] == {"cache": 0, "tokens": 0} and found["tokens"] == 200
    ways = [(row["coding"], row["by_layer"]) for row in found["rows"]]
    assert ways == [(coding, by_layer) for coding in ("raw", "tiered", "auto") for by_layer in (False, True)]
    assert all(0 < row["prefill"] < row["first"] < 60 for row in found["rows"])
    texts = [text.text for text in ElementTree.parse(plot).iter("{http://www.w3.org/2000/svg}text")]
    assert "200 tokens over loopback: from the prompt to the first token, ms" in texts
    assert "tiered, layer by layer" in texts and "then: the network" in texts


@pytest.mark.skipif(not CAN_LIMIT, reason="a link needs root, ip and tc")
def test_a_link_is_waited_for_less_by_what_is_coded():
    ran = run("--tokens", 256, "--repeat", 3, "--gbit", 0.125, "--json")
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout)
    then = {(row["coding"], row["by_layer"]): row["then"] for row in found["rows"]}
    prefill = {(row["coding"], row["by_layer"]): row["prefill"] for row in found["rows"]}
    assert found["wrong"] == {"cache": 0, "tokens": 0}
    assert then["raw", False] > 1.3 * then["tiered", False]
    # Layer by layer, what the link carries during the prefill is not waited for: all of it but for the last layers.
    hidden = min(prefill["raw", True], then["raw", False])
    assert then["raw", False] - then["raw", True] > 0.6 * hidden


def test_what_cannot_be_is_refused():
    ran = run("--tokens", 10)
    assert ran.returncode == 2 and "--tokens must be above" in ran.stderr
