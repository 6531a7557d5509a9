#!/bin/bash
# Make the embedded policy and two judges from the texts in this folder and SmolLM2-135M-Instruct.
#
#     bash scripts/embedded/make.sh SMOLLM2 OUT
#
# SMOLLM2 is the model's folder (mapo fetch smollm2). OUT gets policy/, judge/ and judge_2/, and policy_1/ and policy_2/, the
# stages of the policy. A folder that is already in OUT is not made again. Two CPU cores with bfloat16 matrix units (AMX) need
# about 70 minutes; others need longer.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: bash scripts/embedded/make.sh SMOLLM2 OUT" >&2; exit 2; }
base=$(realpath "$1") out=$(realpath -m "$2")
here=$(dirname "$(realpath "$0")")
cd "$here/../.."
mkdir -p "$out"
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1
# Keep freed memory: getting it anew from the system at each step would take a third of the time.
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 MALLOC_TOP_PAD_=1000000000 GLIBC_TUNABLES=glibc.malloc.hugetlb=1

step() { # step NAME SCRIPT OPTIONS...: write OUT/NAME, with a log beside it
    local name=$1 script=$2; shift 2
    [ -e "$out/$name" ] && return
    echo "$(date +%T) $name"
    .venv/bin/python "$here/$script" --out "$out/$name" "$@" > "$out/$name.log" 2>&1 ||
        { echo "failed: see $out/$name.log"; exit 1; }
}

step policy_1 make_policy.py --base "$base" --tokens 15.5e6
natural=(--all-until 0 --natural 0.9 --dropout 0.2 --lr 1.2e-3)
step policy_2 make_policy.py --start "$out/policy_1" "${natural[@]}" --exchanged 0.7 --dialogues 30000 --tokens 3e6 --seed 6
step policy make_policy.py --start "$out/policy_2" "${natural[@]}" --exchanged 0.8 --dialogues 36000 --tokens 8e6 --seed 7
OMP_NUM_THREADS=1 step judge make_judge.py --policy "$out/policy" --start --part even --seed 1 & first=$!
OMP_NUM_THREADS=1 step judge_2 make_judge.py --policy "$out/policy" --base "$base" --part odd --seed 2 & second=$!
failed=0
wait "$first" || failed=1
wait "$second" || failed=1
[ "$failed" = 0 ] || exit 1
echo "$(date +%T) ready: $out/policy $out/judge $out/judge_2"
