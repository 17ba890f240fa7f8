# Sourced by engine.sh and bases.sh: Debian packages of another release, from the mirror that this host already uses.
# shellcheck shell=bash

export DEBIAN_FRONTEND=noninteractive
DEBIAN_KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

fail() {
  echo "${0##*/}: $*" >&2
  exit 1
}

require_debian_root() {
  [ "$(id -u)" = 0 ] || fail "needs root to $1; run it as root"
  [ "$(. /etc/os-release && echo "$ID")" = debian ] || fail "can $1 on Debian only; do that by hand on this host"
}

host_release() {
  (. /etc/os-release && echo "${VERSION_CODENAME:-unknown}")
}

# Sources (deb822) of the Debian release $1, with its updates and security where the host has those. Asking apt, rather
# than reading its files, covers both formats of the host's own list; --print-uris downloads nothing.
debian_sources() {
  local host uri suite
  host=$(host_release)
  apt-get update --print-uris | sed -nE "s|^'(.*/)dists/([^/]+)/InRelease'.*|\1 \2|p" | sort -u |
    while read -r uri suite; do
      case "$suite" in
        "$host" | "$host-updates" | "$host-security")
          printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n\n' \
            "$uri" "$1${suite#"$host"}" "$DEBIAN_KEYRING"
          ;;
      esac
    done | grep '' || fail "found no Debian source for '$host' in apt's configuration; add one to /etc/apt/sources.list"
}

# What apt was told about reaching its mirror (proxies, clocks that are off): package builds in containers need it too.
debian_apt_options() {
  apt-config dump | grep -E '^Acquire::(Check-[A-Za-z-]+|https?::Proxy) ' || true
}
