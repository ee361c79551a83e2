"""NIXL's plug-in of Strait: python -m strait.nixl [FOLDER]

NIXL loads back ends from one folder, $NIXL_PLUGIN_DIR if that is set. This makes such a folder, with links to the
plug-ins that NIXL's package brings and to libplugin_STRAIT.so, and prints what a shell has to do to use it:

    eval "$(python -m strait.nixl)"

LD_LIBRARY_PATH is part of it, as libraries that are loaded through a link look for theirs beside the link.

The plug-in is $STRAIT_NIXL_PLUGIN, or that of an installed Strait. FOLDER: $XDG_CACHE_HOME/strait/nixl unless given.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from pathlib import Path

NAME = "libplugin_STRAIT.so"


def own_plugins() -> Path:
    """The folder of the plug-ins that NIXL's package brings."""
    for package in ("nixl_cu13", "nixl_cu12"):
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            continue
        folder = Path(spec.origin).parent.parent / f".{package}.mesonpy.libs" / "plugins"
        if folder.is_dir():
            return folder
    raise FileNotFoundError("no plug-ins of NIXL: is its package installed here?")


def plugin() -> Path:
    """Strait's plug-in."""
    named = os.environ.get("STRAIT_NIXL_PLUGIN")
    package = Path(__file__).parent
    candidates = (
        [Path(named)]
        if named
        else [package / "lib" / "nixl" / NAME, *(Path(top) / "nixl" / NAME for top in ("/usr/local/lib", "/usr/lib"))]
    )
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    raise FileNotFoundError(f"no {NAME}: " + ", ".join(str(candidate) for candidate in candidates))


def make_folder(folder: Path) -> Path:
    """Fills the folder with links; what it links to already and is still there stays."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in (*sorted(own_plugins().glob("*.so")), plugin()):
        link, fresh = folder / file.name, folder / f".{file.name}.{os.getpid()}"
        fresh.symlink_to(file)
        fresh.replace(link)
    return folder


def libraries() -> list[Path]:
    """Folders in which the plug-ins' own libraries are."""
    theirs = own_plugins().parent
    package = theirs.name.removeprefix(".").removesuffix(".mesonpy.libs")
    ours = [plugin().parent.parent, Path(__file__).parent.parent / "strait.libs"]
    return [folder for folder in (*ours, theirs, theirs.parent / f"{package}.libs") if folder.is_dir()]


def main() -> int:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        folder = make_folder(Path(sys.argv[1]) if len(sys.argv) > 1 else cache / "strait" / "nixl")
        paths = shlex.quote(":".join(str(path) for path in libraries()))
        print(f"export NIXL_PLUGIN_DIR={shlex.quote(str(folder))}")
        print(f"export LD_LIBRARY_PATH={paths}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}")
    except OSError as failure:
        print(f"strait.nixl: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
