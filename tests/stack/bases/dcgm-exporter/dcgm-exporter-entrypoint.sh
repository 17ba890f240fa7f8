#!/usr/bin/env bash
set -euo pipefail
exec /usr/bin/dcgm-exporter "$@"
