#!/usr/bin/env python3
"""oci_image.py ROOT CONTAINERFILE OUT: packs a folder as an OCI image, with what CONTAINERFILE says about running it.

For machines without a container engine: OUT is an archive for `podman load`, `skopeo copy oci-archive:` or `ctr image import`.
"""

import gzip
import hashlib
import io
import json
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

MEDIA = "application/vnd.oci.image."


def settings(containerfile: str) -> dict:
    """Of the lines that tell how the image runs."""
    config: dict = {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]}
    for line in re.sub(r"\\\n", "", containerfile).splitlines():
        word, _, rest = line.partition(" ")
        if word == "ENV":
            config["Env"] += shlex.split(rest)
        elif word == "USER":
            config["User"] = rest.strip()
        elif word == "VOLUME":
            config["Volumes"] = {path: {} for path in rest.split()}
        elif word == "EXPOSE":
            config["ExposedPorts"] = {f"{port}/tcp": {} for port in rest.split()}
        elif word in ("ENTRYPOINT", "CMD"):
            config[{"ENTRYPOINT": "Entrypoint", "CMD": "Cmd"}[word]] = json.loads(rest)
    return config


def main(root: str, containerfile: str, out: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        layer = Path(folder, "layer.tar")
        tar = ["tar", "--sort=name", "--numeric-owner", "--xattrs", "-C", root, "--exclude=./proc/*", "--exclude=./sys/*", "--exclude=./dev/*"]
        subprocess.run([*tar, "-cf", layer, "."], check=True)
        plain = layer.read_bytes()
    packed = gzip.compress(plain, 6, mtime=0)
    blobs: dict[str, bytes] = {}

    def blob(kind: str, data: bytes) -> dict:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": MEDIA + kind, "digest": f"sha256:{digest}", "size": len(data)}

    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[subprocess.check_output(["uname", "-m"], text=True).strip()],
        "os": "linux",
        "config": settings(Path(containerfile).read_text()),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MEDIA + "manifest.v1+json",
        "config": blob("config.v1+json", json.dumps(config).encode()),
        "layers": [blob("layer.v1.tar+gzip", packed)],
    }
    entry = blob("manifest.v1+json", json.dumps(manifest).encode())
    entry["annotations"] = {"org.opencontainers.image.ref.name": "strait:latest"}
    files = {"oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"}).encode()}
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    files |= {f"blobs/sha256/{digest}": data for digest, data in blobs.items()}
    with tarfile.open(out, "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


if __name__ == "__main__":
    main(*sys.argv[1:])
