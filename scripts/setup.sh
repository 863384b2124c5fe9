#!/usr/bin/env bash
# setup.sh run|dev PYTHON VENV: bring VENV up to date. Quiet unless something fails; safe to repeat.
set -eu
kind=$1 python=$2 venv=$3
log=$venv/setup.log

fail() {
    echo "set-up failed; the end of $log:" >&2
    tail -n 25 "$log" >&2
    exit 1
}

say() { printf 'set-up: %s\n' "$1" >&2; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "trueup needs Python 3.10 or newer; $python is $("$python" --version 2>&1). Try: make PYTHON=python3.12 ..." >&2
    exit 1
}
[ -x "$venv/bin/python" ] || { say "making $venv"; "$python" -m venv "$venv"; }
: >"$log"
install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt "$@" >>"$log" 2>&1 || fail; }

say "PyTorch (the first time takes minutes)"
install torch==2.13.0
if [ "$kind" = dev ]; then
    say "trueup with its tests' tools"
    install -e '.[torch,dev,bench]'
else
    say "trueup"
    install -e '.[torch]'
fi
touch "$venv/.ready-run"
if [ "$kind" = dev ]; then touch "$venv/.ready-dev"; fi
say "done"
