#!/bin/sh
# Sets everything up on Debian 12 or Ubuntu 24.04, builds, and passes the tests.
set -eu
cd "$(dirname "$0")/.."
. deploy/packages.sh

# shellcheck disable=SC2086
install_packages $packages_build $packages_rivals $packages_test
# Debian's python3 is the one that has the packages.
cmake --preset dev -DPython3_EXECUTABLE=/usr/bin/python3 >/dev/null
cmake --build --preset dev
ctest --preset dev -j "$(nproc)" "$@"
