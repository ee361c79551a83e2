#!/usr/bin/env bash
# Every test that needs no GPU, in every build: what .ci/run leaves out because it takes long, repeats a suite under another
# setting or looks for chance. For a release and for each night; it takes hours on two processors. Code for GPUs is
# compiled for every architecture, and run under an emulator alone. Steps to run, in
# this order, are the arguments; without any, all of them. Goes on after a failure and lists the steps that failed.
#
#   dev       all tests of the development build
#   asan      the same under AddressSanitizer and UndefinedBehaviorSanitizer
#   tsan      under ThreadSanitizer
#   model     the model of the protocol, four steps deeper (STRAIT_MODEL_DEPTH)
#   chaos     tests/chaos/run.sh: every fault in every state, host memory and fake GPUs
#   soak      the service under load for 20 minutes (SOAK_SECONDS)
#   mutants   tests/mutate.py: faults planted in the source, each of which a named test has to notice
#   fuzz      libFuzzer with clang, FUZZ_SECONDS (120) for each target, from its corpus
#   loop      tests that depend on time, processes or UCX, LOOPS (50) times beside a busy machine
#   aarch64   the cross build with all tests that run under an emulator
#   architectures  all CUDA code, compiled for every GPU that cmake/StraitOptional.cmake names; needs nvcc
#   nccl      whether the newest NCCL on PyPI exports what libstrait-coll does not, nor nccl_missing.txt; 300 MB
#   frameworks the connectors with the real packages of the frameworks (tests/frameworks)
#   packages  packages made, installed in fresh roots of distributions, used and removed, needs root and a mirror; the
#             sdist and the wheel of the Python package
set -uo pipefail
cd "$(dirname "$0")/.."
. deploy/packages.sh
export CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL:-$((2 * $(nproc)))}
export STRAIT_TEST_SEED=${STRAIT_TEST_SEED:-$(date +%Y%m%d)}
seed=$STRAIT_TEST_SEED
export STRAIT_TEST_ALL=1 # loops of which the commit gate runs every third case
failed=()

# build PRESET: configures and builds it.
build() {
    cmake --preset "$1" >/dev/null && cmake --build --preset "$1"
}

# all PRESET: every test of a build; the presets for ctest leave out those that are long.
all() {
    build "$1" && ctest --test-dir "build/$1" -LE '^packaging$' --output-on-failure --no-tests=error
}

# promtool, for the alerts, without the server that comes with it.
fetch_promtool() {
    command -v promtool >/dev/null && return
    local folder=$PWD/build/promtool
    if mkdir -p "$folder" && (cd "$folder" && apt-get download prometheus && dpkg -x prometheus_*.deb .); then
        PATH=$folder/usr/bin:$PATH
    fi
}

run_dev() {
    deploy/test.sh -R '^layering$' && { fetch_promtool || true; } && all dev # test.sh installs what tests need
}
run_asan() {
    all asan
}
run_tsan() {
    all tsan
}
run_model() {
    build dev && CK_DEFAULT_TIMEOUT=0 STRAIT_MODEL_DEPTH=4 build/dev/tests/protocol/test_model
}
run_chaos() {
    build dev && tests/chaos/run.sh build/dev "$seed"
}
run_soak() {
    build dev && UCX_MEM_EVENTS=no build/dev/tests/soak --daemon build/dev/daemon/straitd --seconds "${SOAK_SECONDS:-1200}"
}
run_mutants() {
    build dev && tests/mutate.py
}
run_fuzz() {
    install_packages clang || return 1
    CC=clang cmake -S . -B build/fuzz -G Ninja -DSTRAIT_FUZZERS=ON -DSTRAIT_SANITIZE=address,undefined >/dev/null &&
        cmake --build build/fuzz || return 1
    for target in build/fuzz/tests/fuzz/fuzz_*; do
        [ -x "$target" ] && [ -f "$target" ] || continue
        name=${target##*/fuzz_}
        mkdir -p "build/fuzz/found/$name"
        "$target" -max_total_time="${FUZZ_SECONDS:-120}" -print_final_stats=1 \
            "build/fuzz/found/$name" "tests/fuzz/corpus/$name" || return 1
    done
}
run_loop() {
    build dev && tests/loop.sh build/dev "${LOOPS:-50}"
}
run_aarch64() {
    tests/aarch64.sh
}
# The Python package as `pip wheel` and `pip install` of its sdist make it, which build the libraries; for one kind of GPU,
# as each builds anew.
python_packages() {
    [ -x build/python/bin/python3 ] || /usr/bin/python3 -m venv build/python || return 1
    # shellcheck disable=SC2086
    build/python/bin/pip install -q $packages_pip "setuptools>=77" wheel || return 1
    rm -rf python/build # what pip leaves there is configured already
    echo 'set(CMAKE_CUDA_ARCHITECTURES 90 CACHE STRING "")' >build/python/one.cmake
    CMAKE_TOOLCHAIN_FILE=$PWD/build/python/one.cmake \
        STRAIT_TEST_WHEEL=1 STRAIT_LIBRARY=$PWD/build/dev/kernels/libstrait-codec.so PYTHONDONTWRITEBYTECODE=1 \
        build/python/bin/python3 -m pytest -q -p no:cacheprovider python/tests/test_package.py -k 'wheel or sdist'
}
run_packages() {
    local ended=0
    build dev || return 1
    python_packages || ended=1
    ctest --test-dir build/dev -L '^packaging$' --output-on-failure --no-tests=error -j 1 || ended=1
    return $ended
}
# Without CMAKE_CUDA_ARCHITECTURES, which names one elsewhere, for speed.
run_architectures() {
    local wanted chosen
    cmake -S . -B build/architectures -G Ninja -DCMAKE_BUILD_TYPE=Release -DSTRAIT_WERROR=ON -DSTRAIT_CUDA=ON >/dev/null || return 1
    wanted=$(sed -n 's/^set(strait_capabilities \(.*\))$/\1/p' cmake/StraitOptional.cmake)
    chosen=$(sed -n 's/^CMAKE_CUDA_ARCHITECTURES:[A-Z]*=//p' build/architectures/CMakeCache.txt | sed 's/-real//g; s/;/ /g')
    if [ -z "$wanted" ] || [ "$chosen" != "$wanted" ]; then
        echo "compiled for $chosen, not for $wanted: nvcc does not know the others" >&2
        return 1
    fi
    cmake --build build/architectures
}
run_nccl() {
    local folder=$PWD/build/nccl ended=0
    install_packages unzip python3-venv && build dev || return 1
    rm -rf "$folder"
    /usr/bin/python3 -m venv "$folder" && "$folder/bin/pip" download -q --no-deps -d "$folder" nvidia-nccl-cu13 &&
        unzip -qoj "$folder"/*.whl '*/libnccl.so.2' -d "$folder" || return 1
    # The list: `nccl_functions.sh WHEEL` makes it anew.
    tests/collective/nccl_functions.sh "$folder"/*.whl "" "$folder/functions" &&
        diff <(grep -v '^#' tests/collective/nccl_functions.txt) <(grep -v '^#' "$folder/functions") || ended=1
    # The library, less what is listed as missing.
    REAL_NCCL=$folder/libnccl.so.2 ctest --test-dir build/dev -R '^collective_exports$' --output-on-failure --no-tests=error || ended=1
    rm -rf "$folder"
    return $ended
}

run_frameworks() {
    build dev && tests/frameworks/run.sh build/dev
}

[ $# -gt 0 ] || set -- dev asan tsan model chaos soak mutants fuzz loop aarch64 architectures nccl frameworks packages
for step; do
    if ! declare -F "run_$step" >/dev/null; then
        echo "nightly.sh: there is no step '$step'" >&2
        exit 2
    fi
done
for step; do
    printf '\n=== %s (seed %s)\n' "$step" "$seed"
    "run_$step" || failed+=("$step")
done
echo
if [ ${#failed[@]} -gt 0 ]; then
    echo "nightly: FAILED: ${failed[*]}"
    exit 1
fi
echo "nightly: all of $* passed"
