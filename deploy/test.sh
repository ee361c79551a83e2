#!/bin/sh
# Sets everything up on Debian 12 or Ubuntu 24.04, builds, and passes the tests of the commit gate. Those that take
# longer are tests/nightly.sh's. Arguments are for ctest, such as -R NAME.
set -eu
cd "$(dirname "$0")/.."
. deploy/packages.sh

# shellcheck disable=SC2086
install_packages $packages_build $packages_test
# Python's tests have an environment of their own: what a machine has installed beside (an old torch) is not theirs.
[ -x build/python/bin/pytest ] || { /usr/bin/python3 -m venv build/python && build/python/bin/pip install -q $packages_pip; }
cmake --preset dev -DPython3_EXECUTABLE="$PWD/build/python/bin/python3" -DCMAKE_CUDA_ARCHITECTURES="$(cuda_capability)" >/dev/null
cmake --build --preset dev
# Many tests wait for deadlines and peers: more of them than there are processors.
ctest --preset dev -j "$((3 * $(nproc)))" "$@"
