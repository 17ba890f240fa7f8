#!/bin/sh
# Install the Python packages of the ray image for $ACCELERATOR; runs only while the image is built.
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
            echo "ACCELERATOR=rocm needs ROCm builds of torch: set TORCH_INDEX_URL in .env to an index that has them." >&2
            exit 2
        fi
        # rocm-smi comes from Debian; the Python index does not have it.
        apt-get update && apt-get install -y --no-install-recommends rocm-smi && rm -rf /var/lib/apt/lists/*
        # The hashes in requirements.txt belong to the CUDA builds, so only the versions are pinned here. amdsmi is left
        # out: without its library it stops Ray, and with it Train V2 numbers the devices of a node wrongly.
        sed -n 's/^\([A-Za-z0-9_.-]*==[^ \\]*\).*/\1/p' /tmp/requirements.txt | grep -v -i '^nvidia-\|^cuda\|^triton' >/tmp/versions.txt
        # The list of requirements.in, with pyrsmi in place of NVIDIA's library; versions come from the constraints.
        sed -e 's/^nvidia-ml-py$/pyrsmi/' -e 's/^\(torch\|torchvision\)==.*/\1/' /tmp/requirements.in >/tmp/rocm.in
        UV_INDEX="$TORCH_INDEX_URL" install --index-strategy unsafe-best-match --constraint /tmp/versions.txt \
            --requirement /tmp/rocm.in
        ;;
    *)
        echo "Invalid ACCELERATOR='$ACCELERATOR': use cpu, cuda or rocm." >&2
        exit 2
        ;;
esac

# Packages that a team added; shipped empty.
install --constraint /tmp/requirements.txt --requirement /tmp/extra-requirements.txt

# Compiled once, here. The user of the image cannot write the caches, and without them every process compiles all that it
# imports: torch, Lightning and Ray Train take 31 s of a core, 11 s with caches. Templates that are not valid Python are
# skipped.
python -m compileall -q -j 0 /opt/venv/lib >/dev/null || true
