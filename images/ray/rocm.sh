#!/bin/sh
# Write what the ray image needs for ROCm: rocm.sh FOLDER TARGET reads requirements.in and requirements.txt in FOLDER, and
# writes rocm.in and its constraints, versions.txt, to TARGET.
set -eu

# The hashes in requirements.txt belong to the CUDA builds, so only the versions are taken. amdsmi is left out: without
# its library it stops Ray, and with it Train V2 numbers the devices of a node wrongly.
sed -n 's/^\([A-Za-z0-9_.-]*==[^ \\]*\).*/\1/p' "$1/requirements.txt" | grep -v -i '^nvidia-\|^cuda\|^triton' >"$2/versions.txt"
# pyrsmi in place of NVIDIA's library; versions come from the constraints.
sed -e 's/^nvidia-ml-py$/pyrsmi/' -e 's/^\(torch\|torchvision\)==.*/\1/' "$1/requirements.in" >"$2/rocm.in"
