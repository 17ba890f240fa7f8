#!/bin/sh
# Pin what every requirements.in needs, with hashes. Versions that are already pinned stay; options are passed to uv, so
# `images/lock.sh --upgrade` takes the newest versions that the files allow. The ray image leads: the others are
# constrained to its versions, so that all of them fit into one environment. ONLY=extra: the packages of the team alone;
# ONLY=torch: the builds of TORCH_INDEX_URL alone.
set -eu
cd "$(dirname "$0")/.."

setting() { sed -n "s/^$1=//p" .env 2>/dev/null || true; }
checksum() { sha256sum <"$1" | cut -d ' ' -f 1; }

export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$(setting PIP_INDEX_URL)}"

compile() {
    # Without header and annotations: they would change with every run and name nothing that the *.in files do not.
    .venv/bin/uv pip compile --quiet --generate-hashes --no-header --no-annotate "$@"
}

pin() { compile --universal --python-version 3.11 "$@"; }

# with_checksum FILE SOURCE: let FILE begin with the checksum of what it was pinned for, which install.sh compares.
with_checksum() {
    pinned=$(cat "$1")
    printf '# sha256 of %s: %s\n%s\n' "${2##*/}" "$(checksum "$2")" "$pinned" >"$1"
}

# beside "FILE ..." OPTION ...: pin for an environment that takes from these files the packages that they pin.
beside() {
    files=$1
    shift
    # shellcheck disable=SC2046,SC2086
    pin "$@" $(printf -- '--constraint %s ' $files) $(sed -n 's/^\([A-Za-z0-9_.-]*\)==.*/--no-emit-package \1/p' $files)
}

# Without the packages of the image itself: with TORCH_INDEX_URL, torch has other hashes.
pin_extra() {
    beside images/ray/requirements.txt "$@" images/ray/extra-requirements.in \
        --output-file images/ray/extra-requirements.txt
    with_checksum images/ray/extra-requirements.txt images/ray/extra-requirements.in
}

# Other builds of torch are on an index of their own. If it is not set, pins for the present versions stay.
pin_torch() {
    pins=images/ray/torch-requirements.txt
    index=${TORCH_INDEX_URL:-$(setting TORCH_INDEX_URL)}
    if [ -n "$index" ]; then
        ACCELERATOR=${ACCELERATOR:-$(setting ACCELERATOR)}
        export ACCELERATOR
        folder=$(mktemp -d)
        images/ray/torch.sh images/ray "$folder"
        UV_INDEX=$index compile "$@" --index-strategy unsafe-best-match --python-version 3.13 \
            --python-platform x86_64-manylinux_2_28 --constraint "$folder/versions.txt" "$folder/torch.in" \
            --output-file "$pins"
        rm -r "$folder"
        with_checksum "$pins" images/ray/requirements.txt
        sed -i "1i # for $ACCELERATOR" "$pins"
    elif ! grep -q "$(checksum images/ray/requirements.txt)" "$pins"; then
        echo "# unseen: \`make lock\` ran without TORCH_INDEX_URL, so its builds are installed without hashes." >"$pins"
    fi
    sed -n 's/^# unseen/unseen/p' "$pins"
}

case "${ONLY:-}" in
    extra | torch)
        "pin_$ONLY" "$@"
        exit
        ;;
    ?*)
        echo "ONLY=$ONLY is unknown: use extra or torch, or leave it out for everything." >&2
        exit 2
        ;;
esac
pin "$@" images/ray/requirements.in --output-file images/ray/requirements.txt
pin_extra "$@"
pin_torch "$@"
for folder in platform images/platform images/ray/lab; do
    pin "$@" --constraint images/ray/requirements.txt "$folder/requirements.in" \
        --output-file "$folder/requirements.txt"
done
beside "images/ray/requirements.txt images/platform/requirements.txt" "$@" tests/requirements.in \
    --output-file tests/requirements.txt
# The unit tests use the same versions as the gateway and the other tests.
beside "images/platform/requirements.txt tests/requirements.txt" "$@" tests/unit/requirements.in \
    --output-file tests/unit/requirements.txt
pin "$@" --constraint platform/requirements.txt images/platform/uv.in --output-file images/platform/uv.txt
