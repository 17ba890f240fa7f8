#!/usr/bin/env bash
# Build the base images that a host without an image registry cannot pull, if they are missing, under the tags that the
# Dockerfiles and compose files name. See bases/README.md.
#   bases.sh [IMAGE...]   build these images instead of those of the compose files
set -euo pipefail
here=$(dirname "$(realpath "$0")")
. "$here/debian.sh"
cd "$here/../.."

exists() { docker image inspect "$1" >/dev/null 2>&1; }

compose_images() {
  local env=(--env-file .env.example)
  if [ -e .env ]; then env+=(--env-file .env); fi
  # Written by `make env`, which needs a virtual environment; no image of the stack follows from it, except GPU exporters.
  [ -e compose/stack.generated.yaml ] || echo 'services: {}' >compose/stack.generated.yaml
  # The version only tags our own images, which have no folder in bases/; `make env` sets it, .env.example does not.
  MLPLATFORM_VERSION=any docker compose "${env[@]}" --file compose/compose.yaml --profile '*' config --images
}

# Succeeds for an image that was pulled, and for one that was built from the folder as it is.
current() {
  exists "$1" && [ "$(docker image inspect --format '{{len .RepoDigests}}' "$1")" -gt 0 ] ||
    [ "$(docker image inspect --format '{{index .Config.Labels "built-from"}}' "$1" 2>/dev/null)" = "$2" ]
}

# The folder in bases/ is named after the last part of the image's name. Images without a folder are skipped.
build() {
  # Built under the tag alone: the digest in compose/images.lock is that of the official image.
  local image=${1%%@*} name tag major digest
  name=${image%:*}
  name=${name##*/}
  tag=${image##*:}
  major=${tag#v}
  [ -e "$here/bases/$name/Dockerfile" ] || return 0
  digest=$(cd "$here/bases/$name" && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16)
  if current "$image" "$digest"; then return 0; fi
  if grep -q '^FROM busybox:stand-in' "$here/bases/$name/Dockerfile"; then build busybox:stand-in; fi
  echo "building $image" >&2
  docker build --quiet --label "built-from=$digest" --build-arg "MAJOR=${major%%[.-]*}" --build-arg "TAG=$tag" \
    --build-arg "GOPROXY=${GOPROXY:-}" --tag "$image" "$here/bases/$name" >/dev/null ||
    fail "could not build $image from tests/stack/bases/$name; the reason is above"
}

base=$(sed -nE 's/^FROM (debian:[^ $]+).*/\1/p' images/*/Dockerfile "$here"/bases/*/Dockerfile | sort -u)
[ "$(wc -l <<<"$base")" = 1 ] || fail "the Dockerfiles must agree on one Debian image; they name: ${base//$'\n'/, }"
if ! exists "$base"; then
  echo "building $base" >&2
  "$here/bases/debian/build.sh" "$base"
fi

images=("$@")
[ $# -gt 0 ] || mapfile -t images < <(compose_images)
[ "${#images[@]}" -gt 0 ] || fail "the compose files name no image; see the error above"
pids=()
for image in "${images[@]}"; do
  build "$image" &
  pids+=($!)
done
for pid in "${pids[@]}"; do
  wait "$pid"
done
