#!/bin/sh
# Describe the image at /image in /out/NAME.cdx.json: describe.sh NAME VERSION. Runs only while images/sbom is built.
set -eu
name=$1 version=$2
mkdir -p /out /parts

debsbom generate --sbom-type cdx --root /image --distro-name debian --out /parts/debian
if [ -x /image/opt/venv/bin/python ]; then
    # The interpreter in /image is this image's, of the same release; only its list of packages is read.
    cyclonedx-py environment --pyproject /tmp/pyproject.toml --output-reproducible --output-file /parts/python.cdx.json \
        /image/opt/venv/bin/python
fi
for program in minio caddy; do
    if [ -x "/image/usr/local/bin/$program" ]; then
        cyclonedx-gomod bin -json -output /parts/go.cdx.json "/image/usr/local/bin/$program"
    fi
done
debsbom merge --sbom-type cdx --distro-name "$name" --distro-version "$version" --out "/out/$name" /parts/*.cdx.json
