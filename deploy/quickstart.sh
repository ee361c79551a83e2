#!/bin/sh
# Sets everything up on Debian 12 or Ubuntu 24.04 and runs the main jobs once, on real data: installs what the build
# needs, builds, compresses a sample of a real KV cache and restores it, moves it between two daemons, and checks every
# byte and page. Prints ratios and speeds.
set -eu
cd "$(dirname "$0")/.."
. deploy/packages.sh

# shellcheck disable=SC2086
install_packages $packages_build
# Kernels for GPUs take longer to compile than all the rest: only for a GPU that is here or named.
cuda=OFF
if [ -n "${STRAIT_CUDA_CAPABILITY:-}" ] || nvidia-smi -L >/dev/null 2>&1; then cuda=AUTO; fi
cmake --preset release -DSTRAIT_TESTS=OFF -DSTRAIT_CUDA=$cuda -DCMAKE_CUDA_ARCHITECTURES="$(cuda_capability)" >/dev/null
cmake --build --preset release

strait=build/release/tools/strait
sample=tests/data/kv-slice.safetensors
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo
echo "== A real KV cache, compressed and restored"
$strait encode "$sample" "$work/kv.strait"
$strait decode "$work/kv.strait" "$work/kv.safetensors"
cmp "$sample" "$work/kv.safetensors"
echo "every byte came back: $(wc -c <"$sample") -> $(wc -c <"$work/kv.strait") bytes"

echo
echo "== Speed of one core on the same data, tiled past the caches"
$strait bench codec --size 256M --repeats 3 --mode top16,tiered
echo
echo "== The same cache, moved between two daemons on this machine"
$strait demo

echo
echo "next: $strait demo --fault flip, $strait --help, or deploy/test.sh"
