#!/bin/sh
# kubernetes.sh FOLDER: tests/kubernetes.py, in an environment of Python that it makes in FOLDER.
set -eu
cd "$(dirname "$0")/.."
if [ ! -e "$1/installed" ]; then
    if ! { python3 -m venv "$1" && "$1/bin/pip" install -q helm-python-sdk==0.2.2 kubernetes-validate==1.37.0 pyyaml; }; then
        echo "skipped: no helm-python-sdk or kubernetes-validate from PyPI"
        exit 77
    fi
    touch "$1/installed"
fi
exec "$1/bin/python3" -B tests/kubernetes.py
