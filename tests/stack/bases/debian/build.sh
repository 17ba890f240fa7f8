#!/usr/bin/env bash
# build.sh debian:SUITE-slim: build that image from the Debian mirror that this host uses.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
. "$here/../../debian.sh"

image=$1
suite=${image#*:}
suite=${suite%-slim}
bundle=/etc/ssl/certs/ca-certificates.crt

require_debian_root "make $image"
if ! command -v debootstrap >/dev/null; then
  apt-get install -y -qq --no-install-recommends debootstrap >/dev/null 2>&1 ||
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends debootstrap >/dev/null; }
fi
sources=$(debian_sources "$suite")
mirror=$(awk -v suite="$suite" '$1 == "URIs:" { uri = $2 } $1 == "Suites:" && $2 == suite { print uri }' <<<"$sources")

root=$(mktemp -d)
trap 'rm -rf "$root" "$root.log"' EXIT
chmod 755 "$root"
debootstrap --variant=minbase --include=ca-certificates --keyring="$DEBIAN_KEYRING" "$suite" "$root" "$mirror" \
  >"$root.log" 2>&1 || { tail -n 20 "$root.log" >&2; fail "debootstrap of $suite failed; its last lines are above"; }

cp -r "$here/files/." "$root"
rm -f "$root/etc/apt/sources.list"
echo "$sources" >"$root/etc/apt/sources.list.d/debian.sources"
debian_apt_options >"$root/etc/apt/apt.conf.d/host"
# Builds trust the certificates that this host trusts, such as a proxy's: the bundle as it is now, and the folder for
# packages that regenerate the bundle.
cp -r /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/"
cp "$bundle" "$root$bundle"

rm -rf "$root"/var/cache/apt/* "$root"/var/cache/ldconfig/* "$root"/var/lib/apt/lists/* "$root"/var/log/* "$root"/tmp/* \
  "$root"/usr/share/{groff,info,lintian,linda,locale,man}/*
find "$root/usr/share/doc" -mindepth 1 ! -type d ! -name copyright -delete
find "$root/usr/share/doc" -mindepth 1 -type d -empty -delete
rm -f "$root/etc/resolv.conf" "$root/etc/hostname" "$root/etc/machine-id"

# pip, uv and node use certificates of their own unless these variables are set.
tar -C "$root" --numeric-owner -c . | docker import \
  --change 'CMD ["bash"]' \
  --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
  --change "ENV SSL_CERT_FILE=$bundle" \
  --change "ENV PIP_CERT=$bundle" \
  --change "ENV NODE_EXTRA_CA_CERTS=$bundle" \
  - "$image" >/dev/null
