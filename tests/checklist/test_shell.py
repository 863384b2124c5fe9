# ruff: noqa: E501 - scripts of one line each
"""Launch scripts are read as bash runs them: each of these is run, with a launcher that writes its words down."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from trueup.checklist.configuration import configured
from trueup.checklist.readers import command_line, shell

RUN = "torchrun pretrain_gpt.py --num-layers 12 --hidden-size 768 --lr 3e-4"
SCRIPTS = {
    "redirections": f"{RUN} --seed 42 > out.log 2>err.log </dev/null",
    "redirections, joined": f"{RUN} --seed 42 2>&1 | cat",
    "redirections, short": f"{RUN} --swiglu &> out.log",
    "placeholder": f'{RUN} --load "<path to weights>"',
    "assigned defaults": ': "${L:=12}"\n: ${LR=3e-4}\ntorchrun x.py --num-layers $L --lr $LR --seed ${S:=$((3*2))}',
    "here-document": "read -r -d '' A <<'EOF'\n--num-layers 12\n--lr 3e-4\nEOF\ntorchrun x.py $A --seed 1",
    "here-document of cat": "S=64\nA=$(cat <<-EOF\n\t--num-layers 12 --lr 3e-4\n\t--seq-length $S\nEOF\n)\n"
    "torchrun x.py $A --seed 1",
    "here-document of another program": f"cat > /dev/null <<EOF\n--num-layers 9 --lr 1 --seed 1 --bf16\nEOF\n{RUN}",
    "case of several patterns": "S=${1:-small}\ncase $S in\n small|tiny) L=12; H=8 ;;\n b*)\n  L=48\n ;;\nesac\n"
    "torchrun x.py --num-layers $L --hidden-size $H --lr 1",
    "and, or": "A=()\nB=true\n[ $B = true ] && A+=(--bf16)\n[[ ${F:-0} == 1 ]] && A+=(--fp16)\n"
    f"(( 4 > 2 )) && A+=(--swiglu) || A+=(--seed 9)\n$B || A+=(--seed 8)\n{RUN} ${{A[@]}}",
    "patterns": 'N=gpt-13b\nif [[ $N == *13b* ]]; then A=--bf16; fi\nif [[ $N =~ ^gpt-([0-9]+) ]]; then B="--seed 4"; fi\n'
    f'if [[ $N == "*13b*" ]]; then C=--fp16; fi\n{RUN} $A $B $C',
    "functions": "common() { C='--lr 3e-4 --seed 2'; }\nlaunch() {\n  local n=$1\n  shift\n  common\n"
    '  torchrun x.py --num-layers $n $C "$@"\n}\nlaunch 12 --bf16 --load "a b"',
    "function called with a part of its arguments": 'f() { torchrun x.py "${@:2}" --seed $#; }\nf a --num-layers 12 --lr 1',
    "named indices": "declare -A C=([l]=12 [h]=8)\nC[lr]=3e-4\nA=(7 8)\nA[2]=9\n"
    "torchrun x.py --num-layers ${C[l]} --hidden-size ${C[h]} --lr ${C[lr]} --seed ${A[2]} --iters ${#A[@]}",
    "changes of texts": "V=v1.2-big\nL=12,24\nD=a/b/c.d\ntorchrun x.py --num-layers ${L%,*} --lr 1 --seed ${V:1:1} "
    "--save ${V%%-*}/${V#v}/${V//./_}/${V^^} --load ${D##*/}/${D%/*}",
    "arithmetic": "G=16; M=2\nA=$((G / M / 8))\n(( A = A < 1 ? 3 : A ))\nlet 'I = 1000 * 5'\n(( I += G ))\n(( M++ ))\n"
    "torchrun x.py --num-layers $A --train-iters $I --micro-batch-size $M --lr 1 --seed `expr 2 + 5`",
    "loops": 'A=""\nfor f in bf16 swiglu; do A="$A --$f"; done\ni=0\nwhile [ $i -lt 3 ]; do i=$((i+1)); done\n'
    f"until false; do i=$((i+1)); (( i > 5 )) && break; done\n{RUN} $A --seed $i",
    "arrays and quotes": "A=(--num-layers 12 # twelve\n  --lr 3e-4\n  # --lr 1\n  --load 'a b')\n"
    'torchrun x.py "${A[@]}" --seed "5" --weight-decay \'0.1\'',
    "array without index": f"A=(--bf16 --swiglu)\n{RUN} $A",
    "indirect": f"B_SEED=6\nN=B_SEED\n{RUN} --seed ${{!N}}",
    "printf into a variable": "printf -v N '%02d' 7\nprintf -v A '%s,' 90 5 5\nprintf -v P '%s/%05d_%s' /d 42 'a b'\n"
    f'{RUN} --seed $N --split ${{A%,}} --save "$P" --clip-grad $(printf %.1f 1) --load "$(printf "run_%03d" 8)"',
    "printf of flags": f"printf -v A -- '--seed %d --bf16' 3\nB=$(printf '%s\\n' --swiglu --save d)\n{RUN} $A $B",
    "quotes inside a variable": f'A="--split \\"949,50,1\\" --load \'a b\'"\n{RUN} $A --seed 1',
    "quotes that eval takes off": f'A="--save \\"a b\\" --split \'9,1\'"\nCMD="{RUN} $A --seed 2"\neval $CMD',
    "eval of a text": f'A=\'--save "x y"\'\neval "{RUN} $A --seed 7"',
    "backslashes between quotes": f'A="C:\\new\\a"\n{RUN} --save "$A" --load "a\\$b" --split "q\\`z\\\\w\\"v"',
    "escapes of a text": f"{RUN} --save $'a\\tb' --load $'it\\'s'",
    "nothing stands there": f"E=\n{RUN} $E ${{U:+--bf16}} ${{E:-}} --seed 3",
}
ARGUMENTS = """
while [[ $# -gt 0 ]]; do
  case "$1" in
    --lr) LR="$2"; shift 2;;
    --layers=*) LAYERS="${1#*=}"; shift;;
    --moe) MOE=true; shift;;
    --) shift; break;;
    *) EXTRA+=("$1"); shift;;
  esac
done
if ${MOE:-false}; then EXTRA+=(--num-experts 8); fi
torchrun x.py --num-layers ${LAYERS:-12} --hidden-size 768 --lr ${LR:-3e-4} "${EXTRA[@]}" "$@"
"""


def _in_bash(script: str, folder: Path, arguments: list[str]) -> list[str]:
    """The words a launcher is given where bash runs the script."""
    path = folder / "run.sh"
    launcher = "torchrun() { printf '%s\\n' torchrun \"$@\" > words; }\n"
    path.write_text(f"{launcher}{script}\n")
    subprocess.run(["bash", str(path), *arguments], cwd=folder, check=False, capture_output=True, timeout=20)
    return (folder / "words").read_text().splitlines()


def _settings(words: list[str]) -> dict[str, object]:
    found = command_line.from_words([(word, "") for word in words], path="x", kind="shell")
    return {key: setting.value for key, setting in found[0].settings.items()}


def _read(script: str, arguments: list[str] | None = None) -> dict[str, object]:
    found = shell.documents(f"#!/bin/bash\n{script}\n", "run.sh", arguments)
    return {key: setting.value for key, setting in found[0].settings.items()}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_read_as_bash_runs_it(name: str, tmp_path: Path) -> None:
    assert _read(SCRIPTS[name]) == _settings(_in_bash(SCRIPTS[name], tmp_path, []))


@pytest.mark.parametrize("given", ["", "--lr 1e-4 --layers=6 --moe --bf16 -- --seed 9", "--fp16 --lr 2"])
def test_arguments_are_gone_through_as_bash_does(given: str, tmp_path: Path) -> None:
    arguments = given.split()
    assert _read(ARGUMENTS, arguments) == _settings(_in_bash(ARGUMENTS, tmp_path, arguments))


def test_a_script_that_another_reads_is_read() -> None:
    inner = "#SBATCH -N 2\nexport NCCL_DEBUG=WARN\nsrun python x.py --num-layers 12 --lr $LR --seed \\$SEED"
    for starter in ("sbatch", "bash -s"):
        found = shell.documents(f"#!/bin/bash\nLR=3e-4\n{starter} <<EOF\n{inner}\nEOF\n", "run.sh")
        assert found[0].settings["lr"].value == 3e-4
        assert found[0].settings["seed"].value == "${SEED}"
        assert found[0].exports == {"NCCL_DEBUG": "WARN"}


def test_what_the_machine_decides_stays_open() -> None:
    """A file that may be there, an answer of a program, a word of a person: each is named with its line."""
    script = (
        "if [ -f x ]; then A='--bf16 --seed 1'; fi\ngrep -q gpu /proc/cpuinfo && B=--fp16\n"
        "while read -r line; do C=--swiglu; done < list\ncommand -v torchrun || exit 1\n"
        "mapfile -t D < list\n"
    )
    found = shell.documents(f"#!/bin/bash\n{script}{RUN} $A $B $C --iters $D\n", "run.sh")[0]
    assert [
        line for line in (2, 3, 4) if f"{line}" in found.notes[0].partition("the branch at line ")[2]
    ] == [*(2, 3, 4)]
    assert {"bf16", "fp16", "swiglu", "seed"} <= found.settings.keys()
    assert not isinstance(found.settings["bf16"].value, bool)
    assert found.settings["iters"].value == "${D}"


def test_a_script_that_does_not_close_is_read_as_far_as_it_goes() -> None:
    for broken in (
        "if true; then\n",
        "f() {\n",
        "case x in\n",
        "A=(",
        'echo "',
        "done\nfi\n}\n;;\n",
        "cat <<EOF\n",
    ):
        try:
            shell.documents(f"#!/bin/bash\n{RUN}\n{broken}", "run.sh")
        except Exception as error:
            pytest.fail(f"{broken!r}: {error!r}")


FLAGS = "train.py --model_name_or_path m --learning_rate 1e-4 --per_device_train_batch_size 2 --max_steps 9"


@pytest.mark.parametrize(
    ("starter", "devices", "dtype"),
    [
        ("accelerate launch --num_processes 4 --mixed_precision bf16", 4, "bfloat16"),
        ("accelerate launch --num_processes=4", 4, None),
        ("deepspeed --num_gpus 8 --num_nodes 2", 16, None),
        ("mpirun -np 6 --allow-run-as-root python", 6, None),
        ("srun -N 2 -n 16 python -u", 16, None),
        ("srun -N 2 -n 2 torchrun --nproc_per_node 8 --nnodes 2", 16, None),
        ("python", None, None),
    ],
)
def test_what_starts_a_program_says_how_many_run(
    starter: str, devices: int | None, dtype: str | None
) -> None:
    found = configured(shell.documents(f"#!/bin/bash\n{starter} {FLAGS}\n", "run.sh")).values
    assert (found["num_devices"].value if "num_devices" in found else None) == devices
    assert (found["compute_dtype"].value == "bfloat16") is (dtype == "bfloat16")


def test_a_value_with_an_equals_sign_is_no_variable_of_the_run() -> None:
    script = "A=1 mpirun -x NCCL_DEBUG=INFO python train.py --max_steps 9 --learning_rate 1 --overrides p=0.1"
    exports = shell.documents(f"#!/bin/bash\n{script}\n", "run.sh")[0].exports
    assert exports == {"A": "1", "NCCL_DEBUG": "INFO"}


def test_what_the_shell_itself_sets_is_another_number_in_each_run() -> None:
    """No test takes it for unset, and two runs with it are no equal seeds."""
    script = f'if [ -z "$RANDOM" ]; then A=--bf16; fi\n{RUN} --seed $RANDOM --iters $((SECONDS + 5)) $A'
    found = shell.documents(f"#!/bin/bash\n{script}\n", "run.sh")[0]
    assert "bf16" not in found.settings
    assert any("another number in each run: RANDOM" in note for note in found.notes)
    assert not any("not set in this script" in note for note in found.notes)
