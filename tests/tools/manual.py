#!/usr/bin/env python3
"""manual.py STRAIT STRAITD: docs/strait.1 and straitd.8 have each command and each option of --help, and no others."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from helps import STRAITD, fail, failures, wanted

#: A build without CUDA has none of the options of benches on GPUs.
HAS_CUDA = (
    "without CUDA"
    not in subprocess.run(
        [sys.argv[1], "bench", "codec", "--device", "--help"], capture_output=True, text=True, timeout=60
    ).stderr
)
#: Options that not every build has, and not this one either.
BUILDS = {"--rivals"}
DOCS = Path(__file__).resolve().parents[2] / "docs"


def plain(text: str) -> str:
    """Without fonts, quotes and the backslashes of dashes."""
    return re.sub(r"\\f[RBIP]", "", text.replace("\\-", "-")).replace('"', "")


def sections(text: str) -> dict[str, str]:
    """The text below each .SS."""
    parts = re.split(r"^\.SS (.+)$", text.split("\n.SH EXIT STATUS")[0], flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def tags(text: str) -> set[str]:
    """Options in the lines behind .TP, which name what is explained."""
    lines = re.findall(r"^\.TP(?: \d+)?\n(.+)$", text, re.M)
    return {option for line in lines for option in re.findall(r"(?<![\w-])--?[\w][\w-]*", line)}


def check_strait(beginnings: dict[tuple[str, ...], set[str]]) -> None:
    text = plain((DOCS / "strait.1").read_text())
    of_command, synopsis = sections(text), text.split(".SH DESCRIPTION")[0]
    for (program, *rest), options in beginnings.items():
        if program == STRAITD:
            continue
        name = " ".join(["strait", *rest])
        if f".B {name} " not in synopsis:
            fail(f"strait.1: the synopsis has no {name}")
        if name not in of_command:
            fail(f"strait.1: no section {name}")
            continue
        body = of_command[name]
        named = tags(body)
        for option in options - {"-h", "--help"}:
            if option.startswith("--") and option not in body:
                letters = {one for one in named if not one.startswith("--")}
                short = letter_of(option, rest)
                if short is None or short not in letters:
                    fail(f"strait.1: {name} does not explain {option}")
            elif not option.startswith("--") and option not in named:
                fail(f"strait.1: {name} does not name {option}")
        for option in named - options:
            if option not in BUILDS and (rest[0] != "bench" or HAS_CUDA):
                fail(f"strait.1: {name} explains {option}, which there is not")


def letter_of(option: str, rest: list[str]) -> str | None:
    """The short form, from --help: `-T, --threads`."""
    answer = subprocess.run([sys.argv[1], *rest, "--help"], capture_output=True, text=True, timeout=60).stdout
    found = re.search(rf"^ +(-\w), {option}\b", answer, re.M)
    return found.group(1) if found else None


def check_straitd(options: set[str]) -> None:
    text = plain((DOCS / "straitd.8").read_text())
    explained = set(re.findall(r"^\.TP\n\.B[IR]? (--?[\w-]+|[\w-]+)", text, re.M))
    for option in options - {"-h", "--help", "--version"}:
        if option not in explained and option.removeprefix("--") not in explained:
            fail(f"straitd.8 does not explain {option}")


def main() -> int:
    beginnings = wanted()
    check_strait(beginnings)
    check_straitd(beginnings[(STRAITD,)])
    if shutil.which("groff"):
        for page in ("strait.1", "straitd.8"):
            told = subprocess.run(["groff", "-man", "-Tutf8", "-ww", DOCS / page], capture_output=True, text=True)
            if told.returncode != 0 or told.stderr:
                fail(f"{page}: {told.stderr}")
    else:
        print("groff is not installed: the pages were not formatted")
    return int(bool(failures))


sys.exit(main())
