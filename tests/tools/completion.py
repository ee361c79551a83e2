#!/usr/bin/env python3
"""completion.py STRAIT STRAITD: each option of each --help is completed in bash, zsh and fish, and nothing else.

The scripts are run by the shells. Of zsh, whose completion needs a terminal, what the script passes to _arguments is
looked at. A shell that is not installed is named and left out: bash has to be there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from helps import STRAIT, fail, failures, run, wanted


def bash(script: Path, words: list[str]) -> set[str]:
    array = " ".join(f"'{word}'" for word in words)
    code = f'. "$0"; COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; _{words[0]}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    return set(run("bash", "-c", code, str(script)).split())


def fish(script: Path, words: list[str]) -> set[str]:
    found = set()
    for dashes in ("-", "--"):
        lines = run(
            "fish", "--no-config", "-c", f"source {script}; complete -C '{' '.join([*words[:-1], dashes])}'"
        ).splitlines()
        found |= {line.split("\t")[0] for line in lines}
    return {option for option in found if option.startswith("-")}


def zsh(script: Path, words: list[str]) -> set[str]:
    stubs = '_arguments() { print -rl -- "$@" }; compadd() { print -rl -- "$@" }; _describe() { }; _files() { }'
    code = f'{stubs}; words=({" ".join(words)}); CURRENT={len(words)}; . "$0"'
    lines = run("zsh", "-fc", code, str(script)).splitlines()
    return {match.group(1) for line in lines if (match := re.match(r"\*(--?[\w-]+?)[=+]?\[", line))}


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}


def check(shell: str, folder: Path, beginnings: dict[tuple[str, ...], set[str]]) -> None:
    complete = SHELLS[shell]
    scripts = {}
    for program in ("strait", "straitd"):
        scripts[program] = folder / f"{program}.{shell}"
        scripts[program].write_text(run(STRAIT, "completion", shell, program))
    for (program, *rest), options in beginnings.items():
        name = Path(program).name
        offered = complete(scripts[name], [name, *rest, "--" if shell != "bash" else "-"])
        if offered != options:
            fail(f"{shell}: {name} {' '.join(rest)}: offered or in --help, and not both: {offered ^ options}")


def check_values(folder: Path) -> None:
    script = folder / "strait.bash"
    for words, some in (
        (["strait", ""], {"encode", "bench", "top", "doctor", "--version"}),
        (["strait", "codebook", ""], {"diff", "expect"}),
        (["strait", "collectives", ""], {"report"}),
        (["strait", "checkpoint", ""], {"inspect", "verify", "diff", "to-safetensors", "from-dcp"}),
        (["strait", "bench", ""], {"codec", "transfer", "hosts", "collective"}),
        (["strait", "top", "--sort", ""], {"name", "bytes", "errors"}),
        (["strait", "top", "--sort", "=", "by"], {"bytes"}),
        (["strait", "encode", "--mode", "t"], {"tiered", "top16"}),
        (["strait", "encode", str(folder)[:-1]], {str(folder)}),
    ):
        offered = bash(script, words)
        if not some <= offered:
            fail(f"{words}: {offered}")
    if bash(script, ["strait", "top", "--interval", ""]) or bash(script, ["strait", "status", ""]):
        fail("files are offered where none are read")
    if bash(folder / "straitd.bash", ["straitd", "--coding", "t"]) != {"top16", "tiered"}:
        fail("the choices of an option of straitd")


def main() -> int:
    beginnings = wanted()
    with tempfile.TemporaryDirectory() as folder:
        for shell in SHELLS:
            if shutil.which(shell) is None and shell != "bash":
                print(f"{shell} is not installed: its completion was not tried")
            else:
                check(shell, Path(folder), beginnings)
        check_values(Path(folder))
    bad = subprocess.run([STRAIT, "completion", "csh"], capture_output=True, text=True)
    if bad.returncode != 2 or "csh" not in bad.stderr:
        fail(bad)
    return int(bool(failures))


sys.exit(main())
