#!/usr/bin/env bash
# setup.sh run|dev|mindspore PYTHON VENV: bring VENV up to date. Quiet unless something fails; safe to repeat.
set -eu
kind=$1 python=$2 venv=$3
log=$venv/setup.log
constraints=constraints.txt

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
pip_install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$constraints" "$@" >>"$log" 2>&1; }
install() { pip_install "$@" || fail; }

# MindSpore has wheels for few Pythons and platforms: where there is none, all but its own tests goes on.
install_mindspore() {
    constraints=$venv/constraints.txt
    names=$(sed -n 's/^\([A-Za-z0-9_.-]*\)==.*/\1/p' constraints-mindspore.txt | paste -sd '|' -)
    { grep -v -E "^($names)==" constraints.txt; cat constraints-mindspore.txt; } >"$constraints"
    say "MindSpore in an environment of its own (the first time takes minutes)"
    if ! pip_install mindspore; then
        grep -q 'No matching distribution found for mindspore' "$log" || fail
        say "there is no MindSpore 2.10 for $("$python" --version 2>&1) on $(uname -sm); its tests will not run"
        return
    fi
    install torch==2.13.0
    install -e '.[curves,bench]' hypothesis pytest pytest-timeout pytest-xdist
}

if [ "$kind" = mindspore ]; then
    install_mindspore
    touch "$venv/.ready-mindspore"
    exit 0
fi
say "PyTorch (the first time takes minutes)"
install torch==2.13.0
if [ "$kind" = dev ]; then
    say "trueup with its tests' tools"
    install -e '.[torch,curves,dev,bench]'
else
    say "trueup"
    install -e '.[torch,curves]'
fi
touch "$venv/.ready-run"
if [ "$kind" = dev ]; then touch "$venv/.ready-dev"; fi
say "done"
