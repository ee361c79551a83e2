#!/bin/sh
# ep_kit.sh BUILD DIR: gathers in DIR what a machine with GPUs needs to try expert parallelism: gpu_ep, gpu_ep_phases,
# libstrait-ep, its plugin libstrait-ep-cuda, libstrait-codec and its plugin libstrait-cuda, what these load but for the C
# library and the driver (protobuf-c), and run.sh. Build targets gpu_ep and gpu_ep_phases for the machine's compute
# capability (CMAKE_CUDA_ARCHITECTURES). The machine's C library must be no older than that of the build.
#
# There: DIR/run.sh [phases] [shapes] [choice] [quantize] [graphs] [kill] [times] [sanitizer], without arguments all but the last.
# Exit status 77: there is no GPU.
set -eu
build=${1:?usage: ep_kit.sh BUILD DIR} kit=${2:?usage: ep_kit.sh BUILD DIR}
mkdir -p "$kit/lib"

. "$(dirname "$0")/kit_files.sh"

for program in gpu_ep gpu_ep_phases; do
    copy "$build/tests/$program" "$kit"
    for library in $(needs "$build/tests/$program"); do copy "$library" "$kit/lib"; done
done
copy "$build/kernels/libstrait-ep-cuda.so.0" "$kit/lib"
copy "$build/kernels/libstrait-cuda.so.0" "$kit/lib"

cat >"$kit/run.sh" <<'END'
#!/bin/sh
# run.sh [PART ...]: made by tests/gpu/ep_kit.sh, which says what parts there are.
cd "$(dirname "$0")" || exit 1
export LD_LIBRARY_PATH="$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
[ $# -gt 0 ] || set -- phases shapes choice quantize graphs kill times
worst=0
for part in "$@"; do
    echo "=== $part"
    case $part in
    phases) timeout -k 5 300 ./gpu_ep_phases 1000 ;;
    sanitizer) timeout -k 5 300 compute-sanitizer --tool memcheck --error-exitcode 97 ./gpu_ep_phases 20 ;;
    *) timeout -k 5 300 ./gpu_ep "$part" ;;
    esac
    status=$?
    echo "=== $part: exit status $status"
    [ $status -eq 0 ] || [ $worst -eq 1 ] || worst=$status
    [ $status -eq 0 ] || [ $status -eq 77 ] || worst=1
done
exit $worst
END
chmod +x "$kit/run.sh"
du -sh "$kit"
