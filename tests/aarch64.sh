#!/usr/bin/env bash
# Builds for aarch64 (no UCX) with Debian's cross compiler and, where qemu-user is at hand, runs the unit
# tests of what is pure. On a processor that is aarch64 itself there is nothing to cross.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/packages.sh

if [ "$(uname -m)" != x86_64 ]; then
    echo "SKIP: this is $(uname -m), the ordinary build covers it"
    exit 0
fi
if [ "$(. /etc/os-release && echo "$ID")" != debian ]; then
    echo "SKIP: arm64 packages beside amd64 ones need Debian's archive"
    exit 0
fi
as_root=""
[ "$(id -u)" -eq 0 ] || as_root="sudo"
dpkg --print-foreign-architectures | grep -qx arm64 || $as_root dpkg --add-architecture arm64
# shellcheck disable=SC2086
install_packages $packages_build gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user \
    libprotobuf-c-dev:arm64 libssl-dev:arm64 libxxhash-dev:arm64 libcjson-dev:arm64 libuv1-dev:arm64 \
    check:arm64
cmake --preset aarch64
cmake --build --preset aarch64
# Check's forks hang under the emulator. What runs is pure and quick: formats, parsers, tables and the fuzzers' corpora, which
# run the coders, too. Of the codec's own suites those without processes, in which NEON's blocks are compared with scalar
# ones, bit for bit. Suites with processes, threads, sockets and clocks of
# their own are for real machines; the emulator hangs when threads end.
export CK_FORK=no QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
ctest --preset aarch64 \
    -R '^(pages|block|codec|container|message.*|blob|page_set|segments|coverage|options|metrics|auth|collective|coll_plan|ep_parts|fuzz_.*)$' -E '^fuzz_checkpoint$'
