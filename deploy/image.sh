#!/usr/bin/env bash
# image.sh OUT.tar [PACKAGES...]: the image of deploy/Containerfile without a container engine, as an OCI archive. Needs root,
# mmdebstrap, and the packages in dist/. PACKAGES are strait, or strait strait-cuda.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$1
shift
[ $# -gt 0 ] || set -- strait
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# mmdebstrap runs the setup in the root, with what apt needs mounted, and removes what a root of an image does not have.
mmdebstrap --quiet --variant=apt --skip=cleanup/run --include=ca-certificates \
    --customize-hook='mkdir "$1/tmp/dist"' --customize-hook='copy-in dist/ /tmp' --customize-hook='copy-in deploy/image-setup.sh /tmp' \
    --customize-hook="chroot \"\$1\" sh /tmp/image-setup.sh /tmp/dist $*" \
    --customize-hook='rm -rf "$1/tmp/dist" "$1/tmp/image-setup.sh" "$1"/usr/share/locale/* "$1"/usr/share/man/*' \
    bookworm "$work/root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
python3 deploy/oci_image.py "$work/root" deploy/Containerfile "$out"
ls -l "$out"
