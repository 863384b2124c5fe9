#!/usr/bin/env bash
# pretrain_gpt.sh [CONFIG]: train on every device this machine shows, or on NPROC processes.
# FRAMEWORK=mindspore trains the same file on MindSpore, by msrun; default: pytorch, by torchrun.
set -u
config=${1:-pretrain_gpt_7B}
port=${PORT:-8828}
project_dir=$(cd "$(dirname "$0")" && pwd) || exit 1
log_dir=${LOG_DIR:-launcher_log}
framework=${FRAMEWORK:-pytorch}
case $framework in
pytorch | mindspore) ;;
*)
    echo "FRAMEWORK=$framework: expected pytorch or mindspore" >&2
    exit 1
    ;;
esac

export HCCL_BUFFSIZE=${HCCL_BUFFSIZE:-200}          # MB of the buffer two NPUs share
export HCCL_EXEC_TIMEOUT=${HCCL_EXEC_TIMEOUT:-600}  # seconds devices wait for one another

devices=${ASCEND_RT_VISIBLE_DEVICES:-${CUDA_VISIBLE_DEVICES:-}}
if [ -n "${NPROC:-}" ]; then
    nproc=$NPROC
elif [ -n "$devices" ]; then
    nproc=$(printf '%s' "$devices" | tr ',' '\n' | grep -c .)
elif [ "$framework" = mindspore ]; then
    nproc=1
else
    nproc=$(python -c 'import torch; print(max(1, torch.accelerator.device_count()))') || exit 1
fi

# Another run may hold the port: it is named, and left alone.
if ! python - "$port" <<'PYTHON'
import socket, sys

with socket.socket() as one:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        one.bind(("127.0.0.1", int(sys.argv[1])))
    except OSError:
        sys.exit(1)
PYTHON
then
    holder=$(command -v lsof >/dev/null && lsof -ti "tcp:$port" -s tcp:listen | tr '\n' ' ')
    echo "port $port is taken${holder:+ by process $holder}; end that one, or set PORT to another" >&2
    exit 1
fi

if [ "$framework" = mindspore ]; then
    # msrun's logs lie in output_dir/msrun_log; a process that fails ends all, and its error is shown.
    export TRUEUP_PORT=$port
    exec python -m trueup_gpt "$config" --framework mindspore --nproc "$nproc"
fi

rm -rf "$log_dir" && mkdir -p "$log_dir" || exit 1
exec python -m torch.distributed.run --nnodes=1 --nproc-per-node="$nproc" --rdzv-backend=c10d \
    --rdzv-endpoint="localhost:$port" --rdzv-conf=join_timeout=300 --log-dir="$log_dir" --tee=3 \
    "$project_dir/pretrain_gpt.py" --config_path "$config" --run_cmd "$0 $*"
