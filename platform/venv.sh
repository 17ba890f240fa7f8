#!/bin/sh
# Create the virtual environment $1 if it is missing; called by the Makefile.
set -eu
venv=$1
if [ -x "$venv/bin/pip" ]; then exit 0; fi

fail() {
    echo "$1" >&2
    exit 1
}

# Ubuntu 22.04 has Python 3.10 as python3, and 3.11 beside it.
for name in python3 python3.14 python3.13 python3.12 python3.11; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$name
        break
    fi
done
if [ -z "${python:-}" ]; then
    found=$(python3 --version 2>/dev/null || echo "no python3")
    fail "Python 3.11 or later is needed, but there is $found: install one beside it (Ubuntu 22.04: sudo apt-get install python3.11-venv) and repeat the command."
fi

# Debian has the tools for creating environments in a separate package.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        fail "$(command -v "$python") cannot create virtual environments: install its venv module (Debian: sudo apt-get install $python-venv)."
    fi
    echo "Installing $python-venv, which $(command -v "$python") lacks."
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$python-venv" >/dev/null
fi
"$python" -m venv "$venv"
