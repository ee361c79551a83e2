#!/usr/bin/env bash
# gpu_round.sh BUILD_DIR [DATA_DIR]: a whole round on a machine with a GPU: the tests, the same under compute-sanitizer,
# and the benches; logs and JSON under $OUT (here: gpu-round), one short table last. Needs no compiler there.
#
#   BUILD_DIR  a build folder, or any folder with bin/ (strait, test_cuda), lib/ (libstrait-cuda.so.0 and the libraries
#              that are not installed there) and, if races are to be looked for, race/libstrait-cuda.so.0, see below
#   DATA_DIR   eval.safetensors and calib.safetensors; without it the bench uses what comes with the sources
#
# racecheck believes the arrival at a barrier of the lane that arrives only. The plugin that it looks at is therefore
# built with every lane arriving: nvcc ... -DSTRAIT_EVERY_LANE_ARRIVES (bench/README.md).
set -uo pipefail
build=${1:?usage: gpu_round.sh BUILD_DIR [DATA_DIR]} data=${2:-}
out=${OUT:-gpu-round}
mkdir -p "$out"
bin=$build/bin
test=$bin/test_cuda strait=$bin/strait
if [ ! -d "$bin" ]; then
    test=$build/tests/test_cuda strait=$build/tools/strait
fi
export LD_LIBRARY_PATH=$build/lib:$build/kernels:${LD_LIBRARY_PATH:-}
rows=() failed=0

# step NAME COMMAND...: runs it, keeps its output and a row of the table.
step() {
    local name=$1 begin=$SECONDS code
    shift
    "$@" >"$out/$name.log" 2>&1
    code=$?
    case $code in
    0) rows+=("$(printf '%-12s ok      %4d s  %s' "$name" $((SECONDS - begin)) "$(tail -n 1 "$out/$name.log")")") ;;
    77) rows+=("$(printf '%-12s skipped %4d s  %s' "$name" $((SECONDS - begin)) "$(tail -n 1 "$out/$name.log")")") ;;
    *) rows+=("$(printf '%-12s FAILED  %4d s  exit status %d, see %s' "$name" $((SECONDS - begin)) $code "$out/$name.log")")
        failed=1 ;;
    esac
}

sanitizer() { compute-sanitizer --error-exitcode 1 "$@" "$test" --chosen; }

step chosen "$test" --chosen
step random "$test" --trials 10000
if command -v compute-sanitizer >/dev/null; then
    step memcheck sanitizer --tool memcheck
    step initcheck sanitizer --tool initcheck
    if [ -f "$build/race/libstrait-cuda.so.0" ]; then
        LD_LIBRARY_PATH=$build/race:$LD_LIBRARY_PATH step racecheck sanitizer --tool racecheck
    else
        rows+=("racecheck    skipped         no $build/race/libstrait-cuda.so.0")
    fi
else
    rows+=("sanitizers   skipped         no compute-sanitizer")
fi
inputs=()
if [ -n "$data" ]; then
    inputs=(--input "$data/eval.safetensors" --calib "$data/calib.safetensors")
fi
step bench "$strait" bench codec --device --repeats 15 "${inputs[@]}"
step bench-json "$strait" bench codec --device --repeats 15 --json "${inputs[@]}"
mv "$out/bench-json.log" "$out/bench.json"

cat "$out/bench.log"
echo
printf '%s\n' "${rows[@]}"
exit $failed
