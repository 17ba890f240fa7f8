#!/bin/bash
# Copy models that another machine has downloaded, from its cache folder $1 (~/.cache), to the caches of jobs and of the
# notebooks that run; `make data FROM=` calls it. Notebooks have caches of their own, because jobs can write to theirs:
# what notebooks load runs with the accounts of people.
set -euo pipefail
platform=$(cd "$(dirname "$0")" && pwd)

fail() {
    echo "$1" >&2
    exit 1
}

case $1 in "~/"*) set -- "$HOME/${1#"~/"}" ;; esac # quoted in the Makefile
parts=$(cd "$1" && ls -d huggingface/hub torch 2>/dev/null) || true
[ "$parts" ] || fail "The folder '$1' holds neither huggingface/hub nor torch; name the cache of a machine that has downloaded models, such as ~/.cache."
services=$("$platform/compose.sh" --profile '*' ps --services | grep -E '^(ray-worker-0|notebook.*)$') ||
    fail "The models of $1 were not copied: the stack does not run; start it with \`make up\`."
for service in $services; do
    folder=/cache
    [ "$service" != ray-worker-0 ] || folder=/shared/cache
    # shellcheck disable=SC2086
    tar --create --directory "$1" $parts |
        "$platform/compose.sh" --profile '*' exec -T "$service" sh -c "mkdir -p $folder && tar --extract --directory=$folder"
    echo "Copied to $folder of $service:" $parts
done
