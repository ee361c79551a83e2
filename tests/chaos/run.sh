#!/bin/sh
# run.sh BUILD [SEED [MEMORY ...]]: the full run for a release: every fault in every state at least five times, at least
# 2000 transfers, at most ten minutes. BUILD is a build folder with tests. MEMORY is where
# pools are: host, fake, cuda; without one, host and then fake.
set -eu
build=${1:?usage: run.sh BUILD [SEED [MEMORY ...]]} seed=${2:-1}
[ $# -le 2 ] && set -- "$build" "$seed" host fake
shift 2
export UCX_MEM_EVENTS=no

# chaos MEMORY OPTIONS ...
chaos() {
    case $1 in
    fake) plugin=tests/chaos-fake behind=tests/fakes/device ;;
    *) plugin=tests/chaos-cuda behind=kernels ;;
    esac
    memory=$1
    shift
    "$build/tests/chaos-driver" --daemon "$build/tests/straitd-chaos" --seed "$seed" \
        --memory "$memory" --plugin "$build/$plugin" \
        --behind "$build/$behind/libstrait-node-cuda.so.0" "$@"
}

for memory; do
    echo "chaos: pools in memory of kind $memory"
    chaos "$memory" --local --hits 5 --transfers 2000 --seconds 600
done
