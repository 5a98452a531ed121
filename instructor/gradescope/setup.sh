#!/usr/bin/env bash
# Gradescope runs this once, when the autograder's image is built.
set -euo pipefail
root=${AUTOGRADER:-/autograder}
environment=${GRADER_ENVIRONMENT:-/opt/captioning}

apt-get update
apt-get install -y bubblewrap util-linux
if ! python3 -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))'; then
    apt-get install -y python3.11 python3.11-venv
    python=python3.11
else
    apt-get install -y python3-venv
    python=python3
fi
"$python" -m venv "$environment"
"$environment/bin/python" -m pip install --disable-pip-version-check -r "$root/source/lab/requirements.txt"
chmod -R go-rwx "$root/source"
