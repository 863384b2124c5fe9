#!/usr/bin/env bash
# Makes the environment of a real verl on a CPU (2.2 GB): .cache/rl, or $TRUEUP_RL_VENV. Quiet; safe to repeat.
set -eu
cd "$(dirname "$0")/.."
venv=${TRUEUP_RL_VENV:-.cache/rl}
[ -e "$venv/.ready" ] && [ -d "$venv/trl/trl" ] && [ -d "$venv/beside/polars" ] && exit 0
echo "set-up: $venv (takes minutes)" >&2
mkdir -p "$(dirname "$venv")"
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >>"$venv/setup.log" 2>&1 || {
        tail -n 25 "$venv/setup.log" >&2
        exit 1
    }
}
install torch==2.13.0
install torch==2.13.0 verl==0.9.1 ray==2.60.0 transformers==5.9.0 tensordict==0.10.0 TransferQueue==0.1.11 \
    torchdata==0.11.0 peft hydra-core==1.3.8 cachetools pyzmq msgspec fastapi uvicorn
install --no-deps --target "$venv/trl" trl==1.16.0 # beside: verl takes another TRL's value head where it finds one
install --no-deps --target "$venv/beside" polars polars-runtime-32 XlsxWriter # of trueup, where it is not installed
touch "$venv/.ready"
