#!/bin/sh
# run.sh [PART ...]: of chaos, scenes, sanitizer, rates; without one, all but the last, in about 100 seconds, or 150
# with two GPUs. Made by tests/gpu/kit.sh. SEED, CHAOS_SECONDS and CHAOS_OPTIONS are of chaos; what the scenes listen to
# is in tests/gpu/world.h. A short report comes last; all logs, packed, go to $OUT when that is set. Exit status 77:
# there is no GPU here.
cd "$(dirname "$0")" || exit 1
kit=$PWD
[ $# -gt 0 ] || set -- chaos scenes sanitizer
parts=" $* "
logs=$(mktemp -d)
export LD_LIBRARY_PATH="$kit/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" UCX_MEM_EVENTS=no
export GPU_TEST_PLUGIN="$kit/chaos" GPU_TEST_BEHIND="$kit/lib/libstrait-node-cuda.so.0"
began=$(date +%s)

wanted() { case $parts in *" $1 "*) ;; *) false ;; esac; }

# part NAME COMMAND ...: in the background, with a log and an exit status of its own.
part() {
    name=$1
    shift
    (
        "$@" >"$logs/$name.log" 2>&1
        echo $? >"$logs/$name.status"
        echo "$(($(date +%s) - began))" >"$logs/$name.ended"
    ) &
}

# chaos SECONDS OPTIONS ...
chaos() {
    seconds=$1
    shift
    # shellcheck disable=SC2086
    timeout -k 5 $((seconds + 20)) ./chaos-driver --daemon ./straitd-chaos --memory cuda --plugin "$GPU_TEST_PLUGIN" \
        --behind "$GPU_TEST_BEHIND" --seed "${SEED:-1}" --seconds "$seconds" \
        ${CHAOS_OPTIONS:-} "$@"
}

# A few transfers of daemons under compute-sanitizer, which looks at memory alone: that two GPUs reach each other already
# is an error to the runtime and none to us. COMPUTE_SANITIZER names another one than that in PATH.
sanitizer() {
    for tool in "${COMPUTE_SANITIZER:-}" compute-sanitizer /usr/local/cuda/bin/compute-sanitizer; do
        if [ -n "$tool" ] && command -v "$tool" >/dev/null; then
            GPU_TEST_UNDER="$tool --tool memcheck --report-api-errors no --error-exitcode 97" timeout -k 5 120 ./gpu_pools ./straitd few
            return
        fi
    done
    echo "skipped: no compute-sanitizer here"
    return 77
}

# scenes NAME ...
scenes() { timeout -k 5 150 ./gpu_pools ./straitd "$@"; }

if wanted chaos; then
    part chaos chaos "${CHAOS_SECONDS:-30}" --local --hits 1 --partly --keep --verbose
    wait
fi
if wanted scenes; then
    part moving scenes shm local shapes ready embedded refusals ucx
    part typed scenes types
    part reading scenes read
    part dying scenes client_dies daemon_dies silence
    part erring scenes client_faults freed
    part failing scenes device_fails device_stalls
fi
wanted sanitizer && part sanitizer sanitizer
wait
wanted rates && part rates scenes rates
wait

# ---- The report -----------------------------------------------------------------------------------------------------

# show NAME: what its log says.
show() {
    case $1 in
    chaos)
        grep -E 'VIOLATION|^chaos|transfers \(|latest verdict|daemons started|time is up|skipped' "$logs/chaos.log" |
            head -n 40 | cut -c1-300
        ;;
    sanitizer) grep -vE '^========= *$|COMPUTE-SANITIZER' "$logs/sanitizer.log" | tail -n 30 | cut -c1-200 ;;
    *) tail -n 90 "$logs/$1.log" | cut -c1-240 ;;
    esac
}

failed=0 skipped=0
for name in chaos moving typed reading dying erring failing sanitizer rates; do
    [ -f "$logs/$name.status" ] || continue
    status=$(cat "$logs/$name.status")
    echo "=== $name: exit status $status, ended after $(cat "$logs/$name.ended") s"
    show $name
    case $status in
    0) ;;
    77) skipped=77 ;;
    *) failed=1 ;;
    esac
done
folder=$(sed -n 's/^logs are in //p' "$logs/chaos.log" 2>/dev/null)
[ -z "$folder" ] || mv "$folder" "$logs/daemons"
[ -z "${OUT:-}" ] || mkdir -p "$OUT"
[ -z "${OUT:-}" ] || tar czf "$OUT/logs.tar.gz" -C "$logs" --exclude='*.shared' .
echo "=== logs in $logs, $(($(date +%s) - began)) s"
[ $failed -eq 0 ] || exit 1
exit $skipped
