#!/usr/bin/env bash
# loop.sh BUILD TIMES [REGEX]: runs the tests of a build again and again until one fails, beside busy loops that take every
# processor (BUSY=0: an idle machine), and lists the tests that failed at least once. REGEX chooses tests by name; without
# it, those that depend on time, processes or UCX.
set -uo pipefail
usage="usage: loop.sh BUILD TIMES [REGEX]"
build=${1:?$usage} times=${2:?$usage}
regex=${3:-'^(transport|ucx.*|shm|loopback|nccl.*|signals|peer.*|http|log|lock|job.*|client.*|node_.*|straitd|demo|examples|cli|bench_.*|embedded|chaos|soak|coll_.*|collective_.*|ep|ep_failures|python.*)$'}
log=$(mktemp)
busy=()
trap 'rm -f "$log"; [ ${#busy[@]} -eq 0 ] || kill "${busy[@]}"' EXIT
if [ "${BUSY:-1}" != 0 ]; then
    for ((i = 0; i < $(nproc); i++)); do
        while :; do :; done &
        busy+=($!)
    done
fi
ctest --test-dir "$build" -R "$regex" -LE '^(gpu|long)$' --repeat until-fail:"$times" -j "$((2 * $(nproc)))" \
    --output-on-failure 2>&1 | tee "$log" | grep -E '\*\*\*|tests passed|^The following|^\s+[0-9]+ - '
! grep -qE '\*\*\*' "$log"
