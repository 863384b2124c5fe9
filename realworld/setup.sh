#!/usr/bin/env bash
# setup.sh NAME ...: makes the environments that real programs run in (light, heavy, titan, verl), each a folder in
# .cache/realworld (or $TRUEUP_REALWORLD_VENVS). Quiet; safe to repeat. PyTorch comes first, so that nothing else
# chooses another build of it.
set -eu
cd "$(dirname "$0")/.."
folder=${TRUEUP_REALWORLD_VENVS:-.cache/realworld}
constraints=realworld/constraints.txt

packages() {
    case $1 in
        light) echo "transformers accelerate peft trl lightning megatron-core torch_geometric" ;;
        heavy) echo "transformers accelerate deepspeed diffusers" ;;
        titan) echo "torchtitan triton timm" ;; # torchtitan imports triton and does not name it
        verl) ;; # rl/setup.sh makes it
        *) echo "setup.sh: expected one of: light, heavy, titan, verl (got '$1')" >&2; exit 2 ;;
    esac
}

for name in "$@"; do
    wanted=$(packages "$name")
    venv=$folder/$name
    torch="torch==2.13.0"
    stamp=$(cat "$constraints" pyproject.toml rl/setup.sh "$0" | sha256sum)
    [ "$(cat "$venv/.ready" 2>/dev/null)" = "$stamp" ] && continue
    mkdir -p "$folder"
    echo "set-up: $venv (takes minutes)" >&2
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
    log=$venv/setup.log
    install() {
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >>"$log" 2>&1 || {
            tail -n 25 "$log" >&2
            exit 1
        }
    }
    : >"$log"
    if [ "$name" = verl ]; then
        TRUEUP_RL_VENV=$venv bash rl/setup.sh
        install "$torch" -e .
    else
        install "$torch"
        install "$torch" -c "$constraints" $wanted
        install -c "$constraints" -e .
    fi
    echo "$stamp" >"$venv/.ready"
done
