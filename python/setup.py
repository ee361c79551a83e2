"""Builds libstrait-codec.so, libstrait.so, libstrait-checkpoint.so and libstrait-ep.so from the tree this folder lies
in and puts them into the wheel, next to the modules; and, where there is an nvcc, the codec's plugin for GPUs.

STRAIT_LIBRARY=/path/to/libstrait-codec.so, STRAIT_CLIENT_LIBRARY=/path/to/libstrait.so, STRAIT_CHECKPOINT_LIBRARY=
/path/to/libstrait-checkpoint.so and STRAIT_EP_LIBRARY=/path/to/libstrait-ep.so pack those instead: with any of them
nothing is built. A plugin beside the first is packed too.

STRAIT_PREFIX=/path/to/an/installation packs its bin, lib and share/strait, with the commands strait and straitd: what
deploy/wheel.sh does. STRAIT_WHEEL_PLATFORM is the wheel's platform then.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.dist import Distribution

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent
#: The tree of sources: what an sdist brings along, or what this folder lies in.
TREE = HERE / "tree" if (HERE / "tree").is_dir() else HERE.parent
#: What of it an sdist needs: files, and folders with all in them.
SOURCES = (
    "CHANGELOG.md CMakeLists.txt LICENSE NOTICE checkpoint client cmake collective daemon deploy docs ep examples include kernels"
    " proto transport"
).split()
#: Name, target that builds it, variable that names another one.
LIBRARIES = (
    ("libstrait-codec.so", "strait-codec", "STRAIT_LIBRARY"),
    ("libstrait.so", "strait-client", "STRAIT_CLIENT_LIBRARY"),
    ("libstrait-checkpoint.so", "strait-checkpoint", "STRAIT_CHECKPOINT_LIBRARY"),
    ("libstrait-ep.so", "strait-ep", "STRAIT_EP_LIBRARY"),
)
#: Folder of libraries of others, beside the package.
LIBS = "strait.libs"
PREFIX = os.environ.get("STRAIT_PREFIX")
PLUGIN, PLUGIN_TARGET = "libstrait-cuda.so.0", "strait-cuda"


def build_libraries(build_dir: Path) -> dict[str, Path]:
    """Builds the shared libraries and returns their paths by name."""
    if not (TREE / "CMakeLists.txt").is_file():
        raise SystemExit(f"{TREE} has no CMakeLists.txt: build from a Strait source tree, or set STRAIT_LIBRARY")
    configure = ["cmake", "-S", str(TREE), "-B", str(build_dir), "-DCMAKE_BUILD_TYPE=Release"]
    configure += ["-DSTRAIT_TESTS=OFF", "-DSTRAIT_TOOLS=OFF"]
    if shutil.which("ninja") and not os.environ.get("CMAKE_GENERATOR"):
        configure += ["-G", "Ninja"]
    subprocess.run(configure, check=True)
    targets = [target for _, target, _ in LIBRARIES]
    if re.search("^CMAKE_CUDA_COMPILER:[A-Z]+=/", (build_dir / "CMakeCache.txt").read_text(), re.MULTILINE):
        targets.append(PLUGIN_TARGET)
    subprocess.run(["cmake", "--build", str(build_dir), "--target", *targets, "--parallel"], check=True)
    built = {name: sorted(build_dir.rglob(name)) for name, _, _ in LIBRARIES}
    missing = [name for name, found in built.items() if not found]
    if missing:
        raise SystemExit(f"the build left no {', '.join(missing)} in {build_dir}")
    return {name: found[0] for name, found in built.items()}


def given_libraries() -> dict[str, Path]:
    """Those that the environment names, by the name they get."""
    return {name: Path(os.environ[variable]) for name, _, variable in LIBRARIES if os.environ.get(variable)}


def with_plugin(libraries: dict[str, Path]) -> dict[str, Path]:
    """The same, and the codec's plugin when it lies beside the codec."""
    codec = libraries.get(LIBRARIES[0][0])
    plugin = None if codec is None else codec.resolve().parent / PLUGIN
    return libraries if plugin is None or not plugin.exists() else {**libraries, PLUGIN: plugin}


def pack_prefix(package: Path, prefix: Path) -> list[str]:
    """Copies an installation without what is for compilers, each library by its soname; returns what it copied."""
    for name in ("bin", "share/strait"):
        shutil.copytree(prefix / name, package / name)
    (package / "lib").mkdir()
    for library in prefix.glob("lib/*.so.0"):
        shutil.copyfile(library.resolve(), package / "lib" / library.name)
    if (prefix / "lib" / LIBS).is_dir():
        shutil.copytree(prefix / "lib" / LIBS, package.parent / LIBS)
    packed = [
        path
        for top in (package / "bin", package / "lib", package / "share", package.parent / LIBS)
        for path in top.rglob("*")
    ]
    return [os.path.relpath(path, package) for path in packed if path.is_file()]


class BuildWithLibraries(build_py):
    """build_py, and the shared libraries."""

    def run(self) -> None:
        super().run()
        if PREFIX:
            self.packed = pack_prefix(self.package_folder(), Path(PREFIX))
            return
        build_dir = Path(self.get_finalized_command("build").build_temp).resolve() / "cmake"
        libraries = with_plugin(given_libraries() or build_libraries(build_dir))
        self.packed = list(libraries)
        for name, library in libraries.items():
            target = self.package_folder() / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(library.resolve(), target)  # the file, not the version links
            target.chmod(0o755)

    def package_folder(self) -> Path:
        return HERE / "strait" if self.editable_mode else Path(self.build_lib) / "strait"

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        names = getattr(self, "packed", None) or given_libraries() or [name for name, _, _ in LIBRARIES]
        return [*super().get_outputs(include_bytecode), *(str(self.package_folder() / name) for name in names)]


class SourcesWithTree(sdist):
    """sdist, and the sources of the libraries."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        for name in SOURCES:
            source, target = TREE / name, Path(base_dir) / "tree" / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
            elif source.exists():
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(source, target)


class PlatformWheel(bdist_wheel):
    """A wheel for this platform but any Python 3: the library is loaded, not linked."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", os.environ.get("STRAIT_WHEEL_PLATFORM") or super().get_tag()[2]


class PlatformDistribution(Distribution):
    """Belongs into platlib, as it holds a shared library."""

    def has_ext_modules(self) -> bool:
        return True


COMMANDS = {"console_scripts": [f"{name} = strait._commands:{name}" for name in ("strait", "straitd")]}
PLUGINS = {"sglang.srt.plugins": ["strait = strait.sglang:plugin"]}
setup(
    cmdclass={"build_py": BuildWithLibraries, "sdist": SourcesWithTree, "bdist_wheel": PlatformWheel},
    distclass=PlatformDistribution,
    entry_points={**PLUGINS, **(COMMANDS if PREFIX else {})},
)
