#!/usr/bin/env bash
# The tests of the containers: an engine, the images that cannot be pulled here, then pytest (its arguments, or all tests).
set -euo pipefail
cd "$(dirname "$0")/../.."

tests/stack/engine.sh
tests/stack/bases.sh
# A start of the whole stack may take minutes on a busy host.
# Later options win: `run.sh -m soak tests/stack` runs the long repetitions instead.
exec .venv/bin/pytest --timeout=900 -m "not soak" "${@:-tests/stack}"
