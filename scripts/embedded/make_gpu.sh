#!/bin/bash
# Make the embedded policy and two judges on one GPU.
#
#     bash scripts/embedded/make_gpu.sh SMOLLM2 OUT
#
# SMOLLM2 is the folder of SmolLM2-135M-Instruct (mapo fetch smollm2). OUT gets policy/, judge/ and judge_2/. In teacher/ and
# judge_teacher/ is SmolLM2 after learning the replies and their levels, in policy_1/ the policy before step 3
# of the README. What is already in OUT is not made again, so an interrupted run continues. PYTHON names another interpreter
# than .venv/bin/python.
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
step policy_1 make_policy.py --base "$base" --teacher "$out/teacher" --width 384 --natural 0.75 --all-until 0.05 \
    --exchanged 0.8 --dropout 0.1 --dialogues 200000 --tokens 140e6 --batch 32768 --lr 2.5e-3
both() { # both: wait for the last two steps, which run side by side
    local failed=0 job
    for job in $(jobs -p); do wait "$job" || failed=1; done
    [ "$failed" = 0 ] || exit 1
}

people=(--policy "$out/policy_1")
step judge_teacher make_judge.py "${people[@]}" --part even --seed 1 --base "$base" --whole \
    --dialogues 70000 --tokens 16e6 --batch 16384 --lr 3e-4 --dropout 0.1 &
step judge_2 make_judge.py "${people[@]}" --part odd --seed 2 --start \
    --dialogues 160000 --tokens 70e6 --batch 24576 --dropout 0.15 &
both
step judge make_judge.py "${people[@]}" --part even --seed 1 --start --teacher "$out/judge_teacher" \
    --dialogues 160000 --tokens 70e6 --batch 24576 --dropout 0.15 &
step policy make_policy.py --start "$out/policy_1" --reachable 0.45 --natural 1 --all-until 0 --exchanged 0.4 \
    --dropout 0.1 --dialogues 60000 --tokens 20e6 --batch 16384 --lr 6e-4 &
both
echo "$(date +%T) ready: $out/policy $out/judge $out/judge_2"
