#!/bin/sh
# run.sh [PART ...]: of chaos, scenes, sanitizer, rates; without one, the first three, in less than 100 seconds. Made by
# tests/gpu/kit.sh. A short report comes last; 77: there is no GPU. All logs, packed, go to $OUT when that is set.
cd "$(dirname "$0")" || exit 1
kit=$PWD
[ $# -gt 0 ] || set -- chaos scenes sanitizer
parts=" $* "
logs=$(mktemp -d)
export LD_LIBRARY_PATH="$kit/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" UCX_MEM_EVENTS=no UCX_WARN_UNUSED_ENV_VARS=n
export GPU_TEST_PLUGIN="$kit/chaos" GPU_TEST_BEHIND="$kit/lib/libstrait-node-cuda.so.0"
began=$(date +%s)

wanted() { case $parts in *" $1 "*) ;; *) false ;; esac; }

# part NAME SECONDS COMMAND ...: in the background, with a log and an exit status of its own.
part() {
    name=$1 seconds=$2
    shift 2
    (
        timeout -k 5 "$seconds" "$@" >"$logs/$name.log" 2>&1
        echo $? >"$logs/$name.status"
        echo "$(($(date +%s) - began))" >"$logs/$name.ended"
    ) &
}

if wanted chaos; then
    part chaos 45 ./chaos-driver --daemon ./straitd-chaos --memory cuda --plugin "$GPU_TEST_PLUGIN" \
        --behind "$GPU_TEST_BEHIND" --local --hits 1 --seconds "${CHAOS_SECONDS:-30}" --partly --keep --verbose --seed "${SEED:-1}"
    wait
fi
if wanted scenes; then
    part moving 70 ./gpu_pools ./straitd shm local shapes ready embedded refusals ucx
    part failing 70 ./gpu_pools ./straitd client_dies daemon_dies silence client_faults freed device_fails device_stalls
fi
wanted sanitizer && part sanitizer 60 ./sanitize.sh ./gpu_pools ./straitd
wait
wanted rates && part rates 120 ./gpu_pools ./straitd rates
wait

# ---- The report -----------------------------------------------------------------------------------------------------
failed=0 skipped=0
for name in chaos moving failing sanitizer rates; do
    [ -f "$logs/$name.status" ] || continue
    status=$(cat "$logs/$name.status")
    echo "=== $name: exit status $status, ended after $(cat "$logs/$name.ended") s"
    case $name in
    chaos) grep -E 'VIOLATION|^chaos|transfers \(|latest verdict|daemons started|time is up|skipped|logs are in' "$logs/$name.log" | head -n 40 | cut -c1-300 ;;
    sanitizer) grep -vE '^========= *$|COMPUTE-SANITIZER' "$logs/$name.log" | tail -n 30 | cut -c1-200 ;;
    *) tail -n 90 "$logs/$name.log" | cut -c1-240 ;;
    esac
    case $status in
    0) ;;
    77) skipped=77 ;;
    *) failed=1 ;;
    esac
done
folder=$(sed -n 's/^logs are in //p' "$logs/chaos.log" 2>/dev/null)
[ -z "$folder" ] || mv "$folder" "$logs/daemons"
[ -z "${OUT:-}" ] || tar czf "$OUT/logs.tar.gz" -C "$logs" --exclude='*.shared' . 2>/dev/null
echo "=== logs in $logs, $(($(date +%s) - began)) s"
[ $failed -eq 0 ] || exit 1
exit $skipped
