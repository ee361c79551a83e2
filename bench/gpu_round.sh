#!/usr/bin/env bash
# gpu_round.sh BUILD_DIR [DATA_DIR]: a whole round on a machine with GPUs: the tests, the same under compute-sanitizer,
# and the benches; logs and JSON under $OUT (here: gpu-round), a short table last. Needs no compiler there. What is not
# there, program or GPU, is left out and said.
#
#   BUILD_DIR  a build folder, or any folder with bin/ (strait, straitd, test_cuda, gpu_pools), lib/ (libstrait-cuda.so.0,
#              libstrait-node-cuda.so.0 and the libraries that are not installed there) and, if races are to be looked
#              for, race/libstrait-cuda.so.0, see below
#   DATA_DIR   eval.safetensors and calib.safetensors; without it the benches use what comes with the sources
#
#   STEPS      of those below, in any order: all
#   TRIALS     of the random test: 10000               SECONDS_MAX  that a step may take: 600
#   REPEATS    of bench codec: 15                      TRANSFER     further options of bench transfer --device
#   SPLITZIP   a checkout of SplitZip: none            NVCOMP       libnvcomp, or a folder or wheel with it: installed
#   RIVALS     further options of rivals_gpu.py        CUBLAS       libcublas: looked for
#
# racecheck believes the arrival at a barrier of the lane that arrives only. The plugin that it looks at is therefore
# built with every lane arriving: nvcc ... -DSTRAIT_EVERY_LANE_ARRIVES (bench/README.md).
set -uo pipefail
build=$(realpath "${1:?usage: gpu_round.sh BUILD_DIR [DATA_DIR]}") data=${2:-}
here=$(dirname "$0")
steps=${STEPS:-chosen random many memcheck initcheck racecheck pools codec transfer fault rivals}
out=${OUT:-gpu-round}
mkdir -p "$out"
if [ -d "$build/bin" ]; then
    test=$build/bin/test_cuda pools=$build/bin/gpu_pools strait=$build/bin/strait straitd=$build/bin/straitd
else
    test=$build/tests/test_cuda pools=$build/tests/gpu_pools strait=$build/tools/strait straitd=$build/daemon/straitd
fi
# Ours only: the libraries of a folder made elsewhere are not for python or the sanitizer.
libraries=$build/lib:$build/kernels:$build/client:$build/daemon:${LD_LIBRARY_PATH:-}
ours=(env "LD_LIBRARY_PATH=$libraries" "STRAITD=$straitd")
inputs=()
if [ -n "$data" ]; then
    inputs=(--input "$data/eval.safetensors" --calib "$data/calib.safetensors")
fi
rows=() shown=() failed=0

row() { # NAME STATUS SECONDS TEXT
    rows+=("$(printf '%-10s %-8s %4s s  %s' "$@")")
}

wanted() { # NAME FILE: the step is to be run, and what it needs is there
    case " $steps " in
    *" $1 "*) ;;
    *) return 1 ;;
    esac
    [ -e "$2" ] && return 0
    row "$1" skipped 0 "no $2"
    return 1
}

# step NAME STATUS COMMAND...: runs it, keeps its output and a row of the table. STATUS: the one that is right.
step() {
    local name=$1 right=$2 begin=$SECONDS code
    shift 2
    timeout "${SECONDS_MAX:-600}" "$@" >"$out/$name.log" 2>&1
    code=$?
    case $code in
    "$right") row "$name" ok $((SECONDS - begin)) "$(tail -n 1 "$out/$name.log" | cut -c 1-150)" ;;
    77) row "$name" skipped $((SECONDS - begin)) "$(tail -n 1 "$out/$name.log" | cut -c 1-150)" ;;
    *)
        row "$name" FAILED $((SECONDS - begin)) "exit status $code, see $out/$name.log"
        failed=1
        ;;
    esac
}

sanitize() { # NAME TOOL [PLUGINS]
    wanted "$1" "$test" || return 0
    if command -v compute-sanitizer >/dev/null; then
        step "$1" 0 env "LD_LIBRARY_PATH=${3:+$3:}$libraries" compute-sanitizer --error-exitcode 1 --tool "$2" \
            "$test" --chosen
    else
        row "$1" skipped 0 "no compute-sanitizer"
    fi
}

# The one that torch brings along, where none is where the bench looks itself.
find_cublas() {
    python3 - <<'PYTHON' 2>/dev/null
import glob, site, sys
for folder in site.getsitepackages() + [site.getusersitepackages()]:
    for found in sorted(glob.glob(folder + "/nvidia/**/libcublas.so.1[23]", recursive=True), reverse=True):
        sys.exit(print(found))
PYTHON
}

wanted chosen "$test" && step chosen 0 "${ours[@]}" "$test" --chosen
wanted random "$test" && step random 0 "${ours[@]}" "$test" --trials "${TRIALS:-10000}"
wanted many "$test" && step many 0 "${ours[@]}" "$test" --many
sanitize memcheck memcheck
sanitize initcheck initcheck
if wanted racecheck "$build/race/libstrait-cuda.so.0"; then
    sanitize racecheck racecheck "$build/race"
fi
wanted pools "$pools" && step pools 0 "${ours[@]}" "$pools" "$straitd"
if wanted codec "$strait"; then
    cublas=${CUBLAS:-$(find_cublas)}
    step codec 0 "${ours[@]}" "$strait" bench codec --device --repeats "${REPEATS:-15}" --save "$out/codec.json" \
        "${inputs[@]}" ${cublas:+--cublas "$cublas"}
    shown+=(codec)
fi
if wanted transfer "$straitd"; then
    # shellcheck disable=SC2086
    step transfer 0 "${ours[@]}" "$strait" bench transfer --device --save "$out/transfer.json" "${inputs[@]}" \
        ${TRANSFER:-}
    shown+=(transfer)
fi
# The checks of the bench itself: a page that is wrong has to be seen.
if wanted fault "$straitd"; then
    step fault 1 "${ours[@]}" "$strait" bench transfer --device --coding raw --wires pinned --size 8M --repeats 1 \
        --fault flip "${inputs[@]}"
    if ! grep -q 'not what was sent' "$out/fault.log"; then
        row fault FAILED 0 "no wrong page was told, see $out/fault.log"
        failed=1
    fi
fi
if wanted rivals "$here/rivals_gpu.py"; then
    if [ -z "$data" ]; then
        row rivals skipped 0 "no DATA_DIR"
    elif ! command -v python3 >/dev/null; then
        row rivals skipped 0 "no python3"
    else
        printf '#!/bin/sh\nLD_LIBRARY_PATH="%s" exec "%s" "$@"\n' "$libraries" "$(realpath "$strait")" >"$out/strait"
        chmod +x "$out/strait"
        # shellcheck disable=SC2086
        step rivals 0 python3 "$here/rivals_gpu.py" "${inputs[@]}" --strait "$(realpath "$out/strait")" \
            ${SPLITZIP:+--splitzip "$SPLITZIP"} ${NVCOMP:+--nvcomp "$NVCOMP"} ${RIVALS:-}
        shown+=(rivals)
    fi
fi

for name in "${shown[@]}"; do
    printf '\n=== %s\n' "$name"
    cat "$out/$name.log"
done
printf '\n=== round\n'
printf '%s\n' "${rows[@]}"
exit $failed
