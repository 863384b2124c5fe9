#!/usr/bin/env bash
# Puts msprobe into an environment of its own, where the benchmarks look for it. Quiet; safe to repeat.
# setup_msprobe.sh [FOLDER], by default $TRUEUP_MSPROBE_VENV or .cache/msprobe-venv.
set -eu
cd "$(dirname "$0")/.."
venv=${1:-${TRUEUP_MSPROBE_VENV:-.cache/msprobe-venv}}
version=26.2.0
if [ -x "$venv/bin/msprobe" ] && "$venv/bin/python" -c "
import importlib.metadata as m, sys; sys.exit(m.version('mindstudio-probe') != '$version')" 2>/dev/null; then
    exit 0
fi
mkdir -p "$(dirname "$venv")"
echo "set-up: msprobe $version (takes minutes)" >&2
"${PYTHON:-python3}" -m venv "$venv"
log=$venv/setup.log
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 "mindstudio-probe==$version" \
    >"$log" 2>&1 || { tail -n 25 "$log" >&2; exit 1; }
