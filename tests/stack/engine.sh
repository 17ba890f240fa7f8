#!/usr/bin/env bash
# Ensure that this host has a running Docker engine with Compose v2 and buildx; an existing one is not changed.
#   engine.sh           install from Debian's packages and start it, if either is missing; and restic, for unit tests
#   engine.sh restart   stop and start the engine, as a reboot of the host would
set -euo pipefail
. "$(dirname "$0")/debian.sh"

LOG=/var/log/dockerd-mlplatform.log
PIDFILE=/run/docker.pid
START_BOUND_S=60
# Longer than the longest grace period of the stack: the engine stops its containers first.
STOP_BOUND_S=180
PLUGINS=/usr/local/lib/docker/cli-plugins

answers() { docker info >/dev/null 2>&1; }
has_plugins() { docker compose version >/dev/null 2>&1 && docker buildx version >/dev/null 2>&1; }
on_systemd() { [ -d /run/systemd/system ] && systemctl cat docker.service >/dev/null 2>&1; }
running_pid() {
  local pid
  pid=$(cat "$PIDFILE" 2>/dev/null) && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ] && echo "$pid"
}

# install_packages "PACKAGE..." [PACKAGE...]: the first ones in the release of our images, or a later one.
install_packages() {
  local packages
  require_debian_root "install $1"
  read -ra packages <<<"$1"
  if [ "$(host_release)" = bookworm ]; then
    # Bookworm has neither Compose v2 nor buildx, and an old restic. Priority 100 leaves all other packages unchanged.
    debian_sources trixie >/etc/apt/sources.list.d/mlplatform-trixie.sources
    printf 'Package: *\nPin: release n=trixie*\nPin-Priority: 100\n' >/etc/apt/preferences.d/mlplatform-trixie
    packages=("${packages[@]/%//trixie}")
  fi
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${packages[@]}" "${@:2}" >/dev/null
}

# A client that is not Debian's may not search Debian's folder of plugins; every client searches this one.
link_plugins() {
  local plugin
  require_debian_root "install Docker"
  mkdir -p "$PLUGINS"
  for plugin in /usr/libexec/docker/cli-plugins/docker-* /usr/lib/docker/cli-plugins/docker-*; do
    if [ -x "$plugin" ]; then ln -sfn "$plugin" "$PLUGINS/"; fi
  done
}

# wait_until SECONDS COMMAND...
wait_until() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$deadline" ] || return 1
    sleep 0.5
  done
}

start() {
  local pid=
  if on_systemd; then
    systemctl start docker || fail "docker.service did not start; see 'journalctl -u docker'"
  elif ! running_pid >/dev/null; then
    require_debian_root "start dockerd"
    rm -f "$PIDFILE"
    setsid nohup dockerd >>"$LOG" 2>&1 </dev/null &
    pid=$!
  fi
  wait_until "$START_BOUND_S" answers_or_died "$pid" || true
  answers && return
  tail -n 20 "$LOG" >&2 2>/dev/null || true
  fail "the engine does not answer 'docker info' (waited up to $START_BOUND_S s); the end of its log $LOG, if any, is above"
}

answers_or_died() { answers || { [ -n "$1" ] && ! kill -0 "$1" 2>/dev/null; }; }

stopped() { ! running_pid >/dev/null; }

stop() {
  local pid
  pid=$(running_pid) || return 0
  kill -TERM "$pid"
  wait_until "$STOP_BOUND_S" stopped || fail "dockerd (process $pid) did not stop within $STOP_BOUND_S s; see $LOG"
}

case "${1:-ensure}" in
  ensure)
    if ! command -v restic >/dev/null && [ "$(id -u)" = 0 ]; then
      (install_packages restic) || echo "restic is missing: the unit tests that need it are skipped" >&2
    fi
    answers && has_plugins && exit 0
    has_plugins || link_plugins
    if ! command -v dockerd >/dev/null || ! has_plugins; then
      install_packages "docker.io docker-cli docker-compose docker-buildx containerd" iptables tini
      has_plugins || link_plugins
    fi
    has_plugins || fail "$(command -v docker) finds no Compose v2 or no buildx; put the plugins into $PLUGINS"
    answers || start
    ;;
  restart)
    if on_systemd; then
      systemctl restart docker || fail "docker.service did not restart; see 'journalctl -u docker'"
    else
      stop
    fi
    start
    ;;
  *) fail "invalid argument '$1': use 'restart', or none" ;;
esac
