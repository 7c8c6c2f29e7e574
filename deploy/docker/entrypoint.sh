#!/bin/sh
# Puts the compiled kernels where numba may write, and becomes `safe-psrl`.
set -eu
if [ "${1:-}" = serve ]; then
    mkdir -p "$NUMBA_CACHE_DIR"
    cp -R "$(dirname "$0")/../kernels/." "$NUMBA_CACHE_DIR"
    chmod -R u+w "$NUMBA_CACHE_DIR"
fi
exec safe-psrl "$@"
