#!/bin/sh
# kit.sh BUILD DIR: gathers in DIR what a machine with GPUs needs to run the tests of pools, chaos and the sanitizer: the
# programs of a build folder, every shared object that they load, and run.sh. Such a machine needs a driver and a C
# library that is no older than that of the build.
set -eu
build=${1:?usage: kit.sh BUILD DIR} kit=${2:?usage: kit.sh BUILD DIR}
here=$(dirname "$0")
mkdir -p "$kit/lib" "$kit/chaos"

. "$here/kit_files.sh"

for program in daemon/straitd tests/straitd-chaos tests/chaos-driver tests/gpu_pools; do
    copy "$build/$program" "$kit"
    for library in $(needs "$build/$program"); do copy "$library" "$kit/lib"; done
done
for plugin in kernels/libstrait-cuda.so.0 kernels/libstrait-node-cuda.so.0 daemon/libstrait-node.so.0; do
    copy "$build/$plugin" "$kit/lib"
done
copy "$build/tests/chaos-cuda/libstrait-node-cuda.so.0" "$kit/chaos"

# UCX looks for its own plugins beside libucs. Those for RDMA cards, with all that they need, stay here.
ucs=$(ldd "$build/daemon/straitd" | awk '$1 ~ /^libucs\.so/ { print $3 }')
if [ -n "$ucs" ]; then
    mkdir -p "$kit/lib/ucx"
    for module in "$(dirname "$(readlink -f "$ucs")")"/ucx/*.so.0; do
        needs "$module" | grep -q libibverbs && continue
        copy "$module" "$kit/lib/ucx"
        for library in $(needs "$module"); do copy "$library" "$kit/lib"; done
    done
fi
cp "$here/kit_run.sh" "$kit/run.sh"
chmod +x "$kit/run.sh"
du -sh "$kit"
