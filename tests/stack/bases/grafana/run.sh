#!/bin/sh
# What the official script does to variables and folders before it starts the server.
set -e
if [ ! -r "$GF_PATHS_CONFIG" ] || [ ! -w "$GF_PATHS_DATA" ]; then
  echo "$GF_PATHS_CONFIG must be readable and $GF_PATHS_DATA writable for user $(id -u):$(id -g)." >&2
fi
[ -d "$GF_PATHS_PLUGINS" ] || mkdir "$GF_PATHS_PLUGINS"
# A file that a variable names becomes a variable, which whoever inspects the process can read.
for name in $(env | sed -n 's/^\(GF_[^=]*\)__FILE=..*/\1/p'); do
  eval "file=\$${name}__FILE"
  export "$name=$(cat "$file")"
  unset "${name}__FILE"
done
exec grafana server "$@"
