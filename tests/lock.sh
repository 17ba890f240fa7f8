#!/bin/sh
# Pin every *.in file anew. The ray image leads; the others take its versions, so that all fit into one environment.
set -eu
cd "$(dirname "$0")/.."

pin() {
    # No header and no annotations: they would change with every run and name nothing that the *.in files do not.
    .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate "$@"
}

pin images/ray/requirements.in --output-file images/ray/requirements.txt
for folder in platform images/platform images/notebook tests; do
    pin --constraint images/ray/requirements.txt "$folder/requirements.in" --output-file "$folder/requirements.txt"
done
pin --constraint platform/requirements.txt images/platform/uv.in --output-file images/platform/uv.txt
