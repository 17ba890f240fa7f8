#!/usr/bin/env bash
# Test the containers: provide a Docker engine and the images that cannot be pulled here, then run pytest with the
# given arguments, or all tests of this folder.
set -euo pipefail
cd "$(dirname "$0")/../.."

tests/stack/engine.sh
tests/stack/bases.sh
# 900 s, because starting the whole stack may take minutes on a busy host.
# Later options win: `run.sh -m nightly tests/stack` runs the long tests instead.
exec .venv/bin/pytest --timeout=900 -m "not nightly" "${@:-tests/stack}"
