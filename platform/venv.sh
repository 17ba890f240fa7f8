#!/bin/sh
# Create the virtual environment $1 if it is missing; called by the Makefile.
set -eu
venv=$1
if [ -x "$venv/bin/pip" ]; then exit 0; fi

fail() {
    echo "$1" >&2
    exit 1
}

command -v python3 >/dev/null || fail "There is no python3: install Python 3.11 or later."
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$(python3 --version) is too old: Python 3.11 or later is needed."

# Debian has the tools for creating environments in a separate package.
if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        fail "$(command -v python3) cannot create virtual environments: install its venv module (Debian: sudo apt-get install python3-venv)."
    fi
    echo "Installing python3-venv, which $(command -v python3) lacks."
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
fi
python3 -m venv "$venv"
