#!/bin/sh
# Installs the Python packages of the ray image for $ACCELERATOR; runs in the image's build only.
set -eu

install() {
    UV_DEFAULT_INDEX="${PIP_INDEX_URL:-}" uv pip install --python /opt/venv --link-mode copy "$@"
}

case "$ACCELERATOR" in
    cpu | cuda)
        install --require-hashes --requirement /tmp/requirements.txt
        ;;
    rocm)
        if [ -z "${TORCH_INDEX_URL:-}" ]; then
            echo "ACCELERATOR=rocm needs the ROCm builds of torch: set TORCH_INDEX_URL in .env to an index that holds them." >&2
            exit 2
        fi
        # rocm-smi is Debian's; the Python index has none.
        apt-get update && apt-get install -y --no-install-recommends rocm-smi && rm -rf /var/lib/apt/lists/*
        # The hashes in requirements.txt are those of the CUDA builds, so here the versions pin alone. amdsmi stays out:
        # without its library it stops Ray, and with it Train V2 numbers the devices of a node wrongly.
        sed -n 's/^\([A-Za-z0-9_.-]*==[^ \\]*\).*/\1/p' /tmp/requirements.txt | grep -v -i '^nvidia-\|^cuda\|^triton' >/tmp/versions.txt
        UV_INDEX="$TORCH_INDEX_URL" install --index-strategy unsafe-best-match --constraint /tmp/versions.txt \
            --requirement /tmp/rocm-requirements.txt
        ;;
    *)
        echo "ACCELERATOR=$ACCELERATOR is unknown; it is one of cpu, cuda, rocm." >&2
        exit 2
        ;;
esac

# What a team added; empty as shipped.
install --constraint /tmp/requirements.txt --requirement /tmp/extra-requirements.txt

# Compiled once, here: the user of the image cannot write the caches, and without them every process compiles what it
# imports anew (31 s of a core for torch, Lightning and Ray Train, 11 s with them). Templates that are no Python stay.
python -m compileall -q -j 0 /opt/venv/lib >/dev/null || true
