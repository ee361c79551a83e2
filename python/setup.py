"""Builds libstrait-codec.so from the tree this folder lies in and puts it into the wheel, next to the modules.

STRAIT_LIBRARY=/path/to/libstrait-codec.so packs that library instead of building one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent
TREE = HERE.parent
LIBRARY = "libstrait-codec.so"


def build_library(build_dir: Path) -> Path:
    """Builds the codec and returns the path of the shared library."""
    if not (TREE / "CMakeLists.txt").is_file():
        raise SystemExit(f"{TREE} has no CMakeLists.txt: build from a Strait source tree, or set STRAIT_LIBRARY")
    configure = ["cmake", "-S", str(TREE), "-B", str(build_dir), "-DCMAKE_BUILD_TYPE=Release"]
    configure += ["-DSTRAIT_TESTS=OFF", "-DSTRAIT_TOOLS=OFF"]
    if shutil.which("ninja") and not os.environ.get("CMAKE_GENERATOR"):
        configure += ["-G", "Ninja"]
    subprocess.run(configure, check=True)
    subprocess.run(["cmake", "--build", str(build_dir), "--target", "strait-codec", "--parallel"], check=True)
    found = sorted(build_dir.rglob(LIBRARY))
    if not found:
        raise SystemExit(f"the build left no {LIBRARY} in {build_dir}")
    return found[0]


class BuildWithLibrary(build_py):
    """build_py, and the shared library."""

    def run(self) -> None:
        super().run()
        given = os.environ.get("STRAIT_LIBRARY")
        build_dir = Path(self.get_finalized_command("build").build_temp).resolve() / "cmake"
        library = Path(given) if given else build_library(build_dir)
        target = self.library_target()
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(library.resolve(), target)  # the file, not the version links
        target.chmod(0o755)

    def library_target(self) -> Path:
        package = HERE / "strait" if self.editable_mode else Path(self.build_lib) / "strait"
        return package / LIBRARY

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), str(self.library_target())]


class PlatformWheel(bdist_wheel):
    """A wheel for this platform but any Python 3: the library is loaded, not linked."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class PlatformDistribution(Distribution):
    """Belongs into platlib, as it holds a shared library."""

    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel}, distclass=PlatformDistribution)
