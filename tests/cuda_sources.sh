#!/bin/sh
# cuda_sources.sh COMPILE_COMMANDS: where there is an nvcc, the build compiles every .cu file of the tree.
set -eu
skip() {
    echo "skipped: $1"
    exit 77
}
command -v nvcc >/dev/null || skip "there is no nvcc"
[ -e "$1" ] || skip "the build does not export its commands"
commands=$(realpath "$1")
cd "$(dirname "$0")/.."
failed=0
for source in $(find bench client collective daemon examples kernels proto tests tools transport -name '*.cu'); do
    grep -q "/$source\"" "$commands" || {
        echo "FAIL: $source is not compiled"
        failed=1
    }
done
exit $failed
