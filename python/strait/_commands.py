"""The commands strait and straitd of a wheel that holds them: programs that lie in the package."""

import os
import sys
from pathlib import Path
from typing import NoReturn


def _become(name: str) -> NoReturn:
    program = Path(__file__).resolve().parent / "bin" / name
    os.execv(program, [name, *sys.argv[1:]])


def strait() -> NoReturn:
    _become("strait")


def straitd() -> NoReturn:
    _become("straitd")
