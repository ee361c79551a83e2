#!/bin/sh
# run.sh BUILD [SEED]: the full run for a release: every fault in every state at least five times, at least 2000
# transfers, at most ten minutes; then the three planted bugs. BUILD is a build folder with tests. CHAOS_TRANSPORT=shm
# for a build without UCX.
set -eu
build=${1:?usage: run.sh BUILD [SEED]} seed=${2:-1}
chaos() {
    "$build/tests/chaos-driver" --daemon "$build/tests/straitd-chaos" --seed "$seed" \
        --transport "${CHAOS_TRANSPORT:-both}" "$@"
}
export UCX_MEM_EVENTS=no

chaos --local --hits 5 --transfers 2000 --seconds 600

for bug in acknowledge epoch drained; do
    if chaos --bug $bug --seconds 120 >/dev/null; then
        echo "chaos: the planted bug $bug was not found"
        exit 1
    fi
    echo "chaos: the planted bug $bug was found"
done
