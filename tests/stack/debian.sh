# Functions of engine.sh and bases.sh: Debian packages of another release, from the mirror that this host already uses.
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

# Print the sources (deb822) of the Debian release $1, with updates and security if the host has them. apt's own output
# covers both formats of source lists; --print-uris downloads nothing.
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

# Print apt's options for reaching its mirror (proxies, wrong clocks): builds in containers need them too.
debian_apt_options() {
  apt-config dump | grep -E '^Acquire::(Check-[A-Za-z-]+|https?::Proxy) ' || true
}
