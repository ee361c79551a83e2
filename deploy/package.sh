#!/bin/sh
# package.sh [DEB] [RPM]: builds the packages for Debian and Ubuntu, or for RPM, into dist/. They need the libraries of the
# distribution on which this runs, so run it on the one that they are for.
set -eu
cd "$(dirname "$0")/.."
. deploy/packages.sh
[ $# -gt 0 ] || set -- DEB

# shellcheck disable=SC2086
! command -v apt-get >/dev/null || install_packages $packages_build dpkg-dev file
cmake --preset package >/dev/null
cmake --build --preset package
for generator; do
    libdir=
    if [ "$generator" = RPM ]; then # whose folder for libraries of 64 bits is not Debian's
        ! command -v apt-get >/dev/null || install_packages rpm
        libdir=lib64
    fi
    cmake --preset package -UCMAKE_INSTALL_LIBDIR ${libdir:+-DCMAKE_INSTALL_LIBDIR=$libdir} >/dev/null
    cmake --build --preset package >/dev/null
    # CPack may leave out one of several packages and end well.
    if ! cpack --config build/package/CPackConfig.cmake -G "$generator" -B dist >build/package/cpack.log 2>&1 ||
        grep -q "CPack Error" build/package/cpack.log; then
        cat build/package/cpack.log
        exit 1
    fi
done
rm -rf dist/_CPack_Packages
ls -l dist
