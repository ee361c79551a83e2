#!/bin/sh
# image-setup.sh FOLDER PACKAGES...: makes a root of Debian the image of straitd: the user with a fixed number, the packages of
# FOLDER, libraries for RDMA. Containerfile runs it, and so does tests/image.sh.
set -eu
dist=$1
shift
groupadd --system --gid 7350 strait
useradd --system --uid 7350 --gid strait --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin strait
debs=
for package; do
    debs="$debs $(echo "$dist/${package}_"*.deb)"
done
apt-get update -q
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $debs ibverbs-providers
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
install -d -o strait -g strait -m 0755 /run/strait
