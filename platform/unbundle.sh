#!/bin/bash
# Verify the archive $1 of `make bundle` completely, then take images and packages from it; `make up BUNDLE=` calls this
# in the checkout, before there is a command line. The archive is what `docker save` writes, packed by gzip, whose
# checksum shows damage. One of its images, named after version and processor, has the packages for pip.
set -euo pipefail
case $1 in "~/"*) set -- "$HOME/${1#"~/"}" ;; esac # quoted in the Makefile
bundle=$1
wheels=$PWD/.venv/wheels

fail() {
    echo "The bundle $bundle $1. Nothing was changed." >&2
    exit 1
}

command -v docker >/dev/null || fail "is for hosts with Docker: install Docker Engine 25 or later with its Compose plugin"
python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || fail "is for Python 3.11 to 3.14: install one of them as python3"
manifest=$(gzip -dc "$bundle" | tar --extract --to-stdout manifest.json) || fail "cannot be read: copy it again"
names=$(grep -oE '"RepoTags": ?\[[^]]*' <<<"$manifest" | cut -d '[' -f 2 | tr -d '" ' | tr ',' '\n') || true
packages=mlplatform-bundle:$(sed -n 's/^version = "\(.*\)"/\1/p' platform/pyproject.toml)-$(uname -m)
found=$(grep '^mlplatform-bundle:' <<<"$names") || fail "is not an archive of \`make bundle\`: name one with BUNDLE="
if [ "$found" != "$packages" ]; then
    fail "is for version and processor ${found#*:}, not ${packages#*:}: write it for these"
fi
echo "The bundle $bundle is complete."
loaded=$(stat --format '%s %.9Y' "$bundle")
images=$(grep -v "^$packages\$" <<<"$names")
# shellcheck disable=SC2086
if [ "$(cat "$wheels/.loaded" 2>/dev/null)" = "$loaded" ] && docker image inspect $images >/dev/null 2>&1; then
    exit
fi
docker load --input "$bundle"
mkdir -p "$wheels"
container=$(docker create "$packages" none)
docker cp "$container:/wheels/." "$wheels"
docker rm "$container" >/dev/null
docker image rm "$packages" >/dev/null
echo "$loaded" >"$wheels/.loaded"
