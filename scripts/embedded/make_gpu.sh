#!/bin/bash
# Make the embedded policy and two judges on one GPU, each with a teacher.
#
#     bash scripts/embedded/make_gpu.sh SMOLLM2 OUT
#
# SMOLLM2 is the folder of SmolLM2-135M-Instruct (mapo fetch smollm2). OUT gets policy/, judge/ and judge_2/, and teacher/,
# judge_teacher/ and judge_teacher_2/, which are SmolLM2 after learning the replies and their levels. What is already in OUT
# is not made again, so an interrupted run continues. PYTHON names another interpreter than .venv/bin/python.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: bash scripts/embedded/make_gpu.sh SMOLLM2 OUT" >&2; exit 2; }
base=$(realpath "$1") out=$(realpath -m "$2")
here=$(dirname "$(realpath "$0")")
cd "$here/../.."
mkdir -p "$out"
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1
python=${PYTHON:-.venv/bin/python}

step() { # step NAME SCRIPT OPTIONS...: write OUT/NAME, with a log beside it, unless it is there
    local name=$1 script=$2; shift 2
    [ -e "$out/$name" ] && return
    echo "$(date +%T) $name"
    "$python" "$here/$script" "$@" --out "$out/$name" > "$out/$name.log" 2>&1 ||
        { tail -n 1 "$out/$name.log"; echo "failed: see $out/$name.log"; exit 1; }
}

step teacher make_policy.py --base "$base" --whole --natural 0.6 --all-until 0.1 --exchanged 0.8 --dropout 0.2 \
    --dialogues 150000 --tokens 24e6 --batch 16384 --lr 3e-4
step policy make_policy.py --base "$base" --teacher "$out/teacher" --width 384 --natural 0.75 --all-until 0.05 \
    --exchanged 0.8 --dropout 0.1 --dialogues 200000 --tokens 140e6 --batch 32768 --lr 2.5e-3
judges() { # judges NAME PART SEED: a teacher and its judge
    local name=$1 teacher=judge_teacher${1#judge} people=(--policy "$out/policy" --part "$2" --seed "$3")
    step "$teacher" make_judge.py "${people[@]}" --base "$base" --whole \
        --dialogues 70000 --tokens 16e6 --batch 16384 --lr 3e-4 --dropout 0.1
    step "$name" make_judge.py "${people[@]}" --start --teacher "$out/$teacher" \
        --dialogues 160000 --tokens 70e6 --batch 24576 --dropout 0.15
}
judges judge even 1
judges judge_2 odd 2
echo "$(date +%T) ready: $out/policy $out/judge $out/judge_2"
