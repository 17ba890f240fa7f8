#!/bin/sh
# Pin what every requirements.in needs, with hashes. Versions that are already pinned stay; options are passed to uv, so
# `images/lock.sh --upgrade` takes the newest versions that the files allow. The ray image leads: the others are
# constrained to its versions, so that all of them fit into one environment.
set -eu
cd "$(dirname "$0")/.."

pin() {
    # Without header and annotations: they would change with every run and name nothing that the *.in files do not.
    .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate "$@"
}

pin "$@" images/ray/requirements.in --output-file images/ray/requirements.txt
for folder in platform images/platform images/notebook tests; do
    pin "$@" --constraint images/ray/requirements.txt "$folder/requirements.in" \
        --output-file "$folder/requirements.txt"
done
# The unit tests use the same versions as the gateway and the other tests.
pin "$@" --constraint images/ray/requirements.txt --constraint images/platform/requirements.txt \
    --constraint tests/requirements.txt tests/unit/requirements.in --output-file tests/unit/requirements.txt
pin "$@" --constraint platform/requirements.txt images/platform/uv.in --output-file images/platform/uv.txt
