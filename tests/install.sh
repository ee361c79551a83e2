#!/usr/bin/env bash
# install.sh BUILD_DIR: installs to a scratch prefix and builds a program against it, once through pkg-config and once
# through CMake's exported target.
set -euo pipefail
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
cmake --install "$build" --prefix "$prefix" >/dev/null

cat >"$work/use.c" <<'C'
#include <stdio.h>
#include <strait/codec.h>

int main(void)
{
    printf("strait %s, %s\n", strait_version(), strait_codec_name(strait_codec_get(NULL)));
    return 0;
}
C
libdir=$(dirname "$(find "$prefix" -name libstrait-codec.so)")
export LD_LIBRARY_PATH=$libdir

export PKG_CONFIG_PATH=$libdir/pkgconfig
# shellcheck disable=SC2046
cc "$work/use.c" -o "$work/by-pkg-config" $(pkg-config --cflags --libs strait)
"$work/by-pkg-config"

cat >"$work/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(use C)
find_package(strait REQUIRED)
add_executable(by-cmake use.c)
target_link_libraries(by-cmake strait::codec)
CMAKE
cmake -S "$work" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
cmake --build "$work/build" >/dev/null
"$work/build/by-cmake"

"$prefix/bin/strait" --version
test -f "$prefix/share/man/man1/strait.1"
echo "installed library is usable"
