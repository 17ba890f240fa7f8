#!/usr/bin/env bash
# The documented first start of the official image: create a cluster in $PGDATA with the user, password and database from
# the environment, then run the files of /docker-entrypoint-initdb.d once. Later starts only start the server.
set -euo pipefail
shopt -s nullglob

fail() {
  echo "postgres: $*" >&2
  exit 1
}

# Set and export $1: from the environment, from the file in ${1}_FILE, or to $2.
setting() {
  local file=${1}_FILE
  [ -z "${!1:-}" ] || [ -z "${!file:-}" ] || fail "both $1 and $file are set; set one of them"
  if [ -n "${!file:-}" ]; then
    printf -v "$1" '%s' "$(<"${!file}")"
  else
    printf -v "$1" '%s' "${!1:-$2}"
  fi
  export "${1?}"
  unset "$file"
}

# It listens on its socket only, so that no client connects before the init scripts have finished. As in the official
# image, it also gets the arguments of the server.
start_temporary_server() {
  PGUSER=$POSTGRES_USER pg_ctl --pgdata "$PGDATA" --wait \
    --options "$(printf '%q ' "$@" -c listen_addresses= -p "${PGPORT:-5432}")" start >/dev/null
}

sql() {
  psql --set ON_ERROR_STOP=1 --no-password --no-psqlrc --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" "$@"
}

# initdb refuses a user id without a name. As in the official image, nss_wrapper gives it one, for initdb only.
name_user() {
  getent passwd "$(id -u)" >/dev/null && return 0
  NSS_WRAPPER_PASSWD=$(mktemp) NSS_WRAPPER_GROUP=$(mktemp)
  export NSS_WRAPPER_PASSWD NSS_WRAPPER_GROUP
  echo "postgres:x:$(id -u):$(id -g):PostgreSQL:$PGDATA:/bin/false" >"$NSS_WRAPPER_PASSWD"
  echo "postgres:x:$(id -g):" >"$NSS_WRAPPER_GROUP"
  export LD_PRELOAD=libnss_wrapper.so
}

unname_user() {
  [ -n "${NSS_WRAPPER_PASSWD:-}" ] || return 0
  rm -f "$NSS_WRAPPER_PASSWD" "$NSS_WRAPPER_GROUP"
  unset LD_PRELOAD NSS_WRAPPER_PASSWD NSS_WRAPPER_GROUP
}

initialise() {
  local file
  setting POSTGRES_PASSWORD ''
  setting POSTGRES_USER postgres
  setting POSTGRES_DB "$POSTGRES_USER"
  setting POSTGRES_INITDB_ARGS ''
  : "${POSTGRES_HOST_AUTH_METHOD:=scram-sha-256}"
  [ -n "$POSTGRES_PASSWORD" ] || [ "$POSTGRES_HOST_AUTH_METHOD" = trust ] ||
    fail "no password for the superuser: set POSTGRES_PASSWORD_FILE (or POSTGRES_PASSWORD) to a non-empty value"

  name_user
  # initdb reads the password from a file. A pipe keeps it off the disk and the command line.
  # eval, because POSTGRES_INITDB_ARGS of the official image may hold several quoted arguments.
  eval 'initdb --username="$POSTGRES_USER" --pwfile=<(printf "%s\n" "$POSTGRES_PASSWORD")' "$POSTGRES_INITDB_ARGS"
  printf '\nhost all all all %s\n' "$POSTGRES_HOST_AUTH_METHOD" >>"$PGDATA/pg_hba.conf"

  unname_user

  start_temporary_server "$@"
  [ "$POSTGRES_DB" = postgres ] ||
    sql --dbname postgres --set db="$POSTGRES_DB" <<<'CREATE DATABASE :"db";'
  for file in /docker-entrypoint-initdb.d/*; do
    echo "postgres: $file"
    # shellcheck disable=SC1090 # the files are known at run time only
    case "$file" in
      *.sh) if [ -x "$file" ]; then "$file"; else . "$file"; fi ;;
      *.sql) sql --file "$file" ;;
      *.sql.gz) gunzip -c "$file" | sql ;;
      *) echo "postgres: ignored, neither .sh nor .sql nor .sql.gz" ;;
    esac
  done
  pg_ctl --pgdata "$PGDATA" --wait --mode fast stop >/dev/null
  unset POSTGRES_PASSWORD
  echo "postgres: initialized, starting"
}

case "${1:-}" in -*) set -- postgres "$@" ;; esac
if [ "${1:-}" = postgres ]; then
  mkdir -p "$PGDATA"
  if [ "$(id -u)" = 0 ]; then
    find "$PGDATA" /var/run/postgresql \! -user postgres -exec chown postgres {} +
    exec setpriv --reuid=postgres --regid=postgres --init-groups -- "$0" "$@"
  fi
  chmod 700 "$PGDATA" || true
  [ -s "$PGDATA/PG_VERSION" ] || initialise "${@:2}"
fi
exec "$@"
