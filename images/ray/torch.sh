#!/bin/sh
# Write what the ray image needs with another build of torch: torch.sh FOLDER TARGET reads requirements.in and
# requirements.txt in FOLDER, and writes torch.in and its constraints, versions.txt, to TARGET, for $ACCELERATOR.
set -eu

# The hashes in requirements.txt belong to the CUDA builds of the default index, so only the versions are taken, with the
# markers that choose between two of them; CUDA's own libraries belong to a build. amdsmi is left out: without its library
# it stops Ray, and with it Train V2 numbers the devices of a node wrongly.
sed -n 's/^\([A-Za-z0-9_.-]*==[^\\]*[^\\ ]\) *\\*$/\1/p' "$1/requirements.txt" | grep -v -i '^nvidia-\|^cuda\|^triton' >"$2/versions.txt"
sed -e 's/^\(torch\|torchvision\)==.*/\1/' "$1/requirements.in" >"$2/torch.in"
if [ "$ACCELERATOR" = rocm ]; then
    # pyrsmi in place of NVIDIA's library.
    sed -i -e 's/^nvidia-ml-py$/pyrsmi/' "$2/torch.in"
fi
