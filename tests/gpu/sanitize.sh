#!/bin/sh
# sanitize.sh GPU_POOLS STRAITD: a few transfers of daemons under compute-sanitizer, which watches every access of their
# kernels. Skipped, with the reason, without it or without a GPU. COMPUTE_SANITIZER names another one than that in PATH.
set -eu
pools=${1:?usage: sanitize.sh GPU_POOLS STRAITD} straitd=${2:?usage: sanitize.sh GPU_POOLS STRAITD}
for tool in "${COMPUTE_SANITIZER:-}" compute-sanitizer /usr/local/cuda/bin/compute-sanitizer; do
    if [ -n "$tool" ] && command -v "$tool" >/dev/null; then
        GPU_TEST_UNDER="$tool --tool memcheck --error-exitcode 97" exec "$pools" "$straitd" few
    fi
done
echo "skipped: no compute-sanitizer here"
exit 77
