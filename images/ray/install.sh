#!/bin/sh
# Install the Python packages of the ray image for $ACCELERATOR; runs only while the image is built.
set -eu
cd "$(dirname "$0")"

install() {
    UV_DEFAULT_INDEX="${PIP_INDEX_URL:-}" uv pip install --python /opt/venv --link-mode copy "$@"
}

# pinned_for FILE SOURCE: succeeds if `make lock` has written FILE for SOURCE as it is now.
pinned_for() {
    grep -qx "# sha256 of $2: $(sha256sum <"$2" | cut -d ' ' -f 1)" "$1"
}

# First, as the other packages take minutes. A line of a package continues with its hashes.
if ! pinned_for extra-requirements.txt extra-requirements.in || grep -q '^[^#[:space:]].*[^\]$' extra-requirements.txt; then
    echo "images/ray/extra-requirements.txt is not what \`make lock\` writes for extra-requirements.in: list your team's" \
        "packages in extra-requirements.in, then run \`make lock ONLY=extra\`." >&2
    exit 2
fi

case "$ACCELERATOR" in
    cpu | cuda) ;;
    rocm)
        if [ -z "${TORCH_INDEX_URL:-}" ]; then
            echo "ACCELERATOR=rocm needs ROCm builds of torch: set TORCH_INDEX_URL in .env to an index that has them." >&2
            exit 2
        fi
        # From Debian; the Python index does not have it.
        apt-get update && apt-get install -y --no-install-recommends rocm-smi && rm -rf /var/lib/apt/lists/*
        ;;
    *)
        echo "Invalid ACCELERATOR='$ACCELERATOR': use cpu, cuda or rocm." >&2
        exit 2
        ;;
esac

if [ -z "${TORCH_INDEX_URL:-}" ]; then
    install --require-hashes --requirement requirements.txt
else
    export UV_INDEX="$TORCH_INDEX_URL"
    if pinned_for torch-requirements.txt requirements.txt && grep -qx "# for $ACCELERATOR" torch-requirements.txt; then
        install --index-strategy unsafe-best-match --require-hashes --requirement torch-requirements.txt
    else
        echo "The builds of TORCH_INDEX_URL have no hashes yet: \`make lock\` pins them if it is set in .env." >&2
        sh ./torch.sh . .
        install --index-strategy unsafe-best-match --constraint versions.txt --requirement torch.in
    fi
    unset UV_INDEX
    python check_torch.py "$ACCELERATOR"
fi

# Packages that a team added; shipped empty. All that they need is in the file, or in the image already.
install --no-deps --require-hashes --requirement extra-requirements.txt

# Compiled once, here. The user of the image cannot write the caches, and without them every process compiles all that it
# imports: torch, Lightning and Ray Train take 31 s of a core, 11 s with caches. Templates that are not valid Python are
# skipped.
python -m compileall -q -j 0 /opt/venv/lib >/dev/null || true
