# The Debian and Ubuntu packages that a build and its tests need, and what CUDA code is compiled for; sourced by the
# scripts beside it.

# To build.
packages_build="cmake ninja-build gcc libc6-dev pkg-config git ca-certificates
    libprotobuf-c-dev protobuf-c-compiler libssl-dev libxxhash-dev libcjson-dev libuv1-dev uthash-dev libucx-dev
    liburing-dev"
# To test.
packages_test="check g++ python3 python3-venv"
# From PyPI, into an environment of the tests.
packages_pip="numpy pytest xxhash"

# install_packages NAME...: those that are missing, as root or through sudo. A name without an architecture is this
# machine's: the same package of another one does not count.
install_packages() {
    missing=""
    for package in "$@"; do
        case $package in
        *:*) architecture=${package#*:} ;;
        *) architecture="$(dpkg --print-architecture)|all" ;;
        esac
        dpkg-query -W -f='${Architecture} ${Status}\n' "$package" 2>/dev/null |
            grep -Eq "^($architecture) .*ok installed" || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    as_root=""
    [ "$(id -u)" -eq 0 ] || as_root="sudo"
    echo "installing:$missing"
    # shellcheck disable=SC2086
    $as_root apt-get update -q >/dev/null &&
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing >/dev/null
}

# The compute capability, times 10, that CUDA code is compiled for: STRAIT_CUDA_CAPABILITY, or that of this machine's
# GPU, or 9.0. Code for all takes minutes.
cuda_capability() {
    found=${STRAIT_CUDA_CAPABILITY:-$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
        grep -Em1 '^[0-9]+\.[0-9]$' | tr -d .)}
    echo "${found:-90}"
}
