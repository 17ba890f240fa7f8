#!/bin/sh
# Run Docker Compose on this checkout's files. Compose prefers exported variables to .env; without those that are named
# like settings, and its own, which shells export for other programs (as mlplatform_stack/env_file.py does).
cd "$(dirname "$0")/.." || exit
names() {
    {
        grep -rhoE '\$\{\w+' compose --include='*.yaml' | cut -c3-
        grep -oE '^\w+' .env.example
    } | grep -viE '_(digest|proxy)$'
    env | grep -oE '^COMPOSE_\w+'
    echo DOCKER_BUILDKIT DOCKER_DEFAULT_PLATFORM
}
# shellcheck disable=SC2046
unset $(names)
eval "$(PYTHONPATH=platform/mlplatform:platform/stack .venv/bin/python -m mlplatform_stack.proxies 2>/dev/null)"
# As after a `git pull`: `make up` writes them at each start.
[ ! -e .env ] || [ -e compose/stack.generated.yaml ] || make --no-print-directory env </dev/null >&2 || exit
# What .env lacks has its default.
exec docker compose --env-file .env.example --env-file .env --file compose/compose.yaml "$@"
