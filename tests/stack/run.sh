#!/usr/bin/env bash
# The tests of the containers: an engine, the images that cannot be pulled here, then pytest (its arguments pass through).
set -euo pipefail
cd "$(dirname "$0")/../.."

tests/stack/engine.sh
tests/stack/bases.sh
exec .venv/bin/pytest tests/stack "$@"
