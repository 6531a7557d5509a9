#!/bin/bash
# Make the embedded policy and two judges on one GPU, with a teacher, and if you like with a model that writes more replies.
#
#     bash scripts/embedded/make_gpu.sh SMOLLM2 OUT [QWEN]
#
# SMOLLM2 is the folder of SmolLM2-135M-Instruct (mapo fetch smollm2), QWEN that of Qwen2.5-Coder-1.5B-Instruct (mapo fetch
# qwen2.5-coder-1.5b) or its GGUF file. What is already in OUT is not made again, so an interrupted run continues. OUT gets
# teacher/ (SmolLM2 after learning all replies), policy/, refined/ (the policy, trained further on natural replies), judge/
# and judge_2/; with QWEN also adapter/ and written/ (the writer and its replies), and refined/ learns those too, and replies
# of policy/ that make sense.
#
# With QWEN, the script stops where lines are still unwritten when the time for writing is over; run it again to continue.
#
# Environment variables:
#   TRAIN_MINUTES  longest time of training the writer (default: 8)
#   WRITE_MINUTES  longest time of writing replies in one run (default: 15)
#   PYTHON         the interpreter (default: .venv/bin/python)
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: bash scripts/embedded/make_gpu.sh SMOLLM2 OUT [QWEN]" >&2; exit 2; }
base=$(realpath "$1") out=$(realpath -m "$2") qwen=${3:+$(realpath "$3")}
here=$(dirname "$(realpath "$0")")
cd "$here/../.."
mkdir -p "$out"
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1
python=${PYTHON:-.venv/bin/python}

run() { # run NAME COMMAND...: with a log in OUT
    local name=$1; shift
    echo "$(date +%T) $name"
    "$@" > "$out/$name.log" 2>&1 || { tail -n 1 "$out/$name.log"; echo "failed: see $out/$name.log"; exit 1; }
}
step() { # step NAME SCRIPT OPTIONS...: write OUT/NAME unless it is there
    local name=$1 script=$2; shift 2
    [ -e "$out/$name" ] || run "$name" "$python" "$here/$script" "$@" --out "$out/$name"
}

if [ -f "$qwen" ]; then # a GGUF file
    [ -e "$out/qwen" ] || run qwen "$python" -m mapo fetch qwen2.5-coder-1.5b --gguf "$qwen" --out "$out/qwen"
    qwen=$out/qwen
fi
writer=(--model "$qwen" --adapter "$out/adapter")
texts=(--exchanged 0.8 --dropout 0.2 --dialogues 200000)
written=() rated=()
if [ -n "$qwen" ]; then
    written=(--written "$out/written" --least 0.95)
    rated=(--written "$out/written" --read "$out/read.jsonl.gz")
    step examples writer.py prepare --model "$qwen"
    step adapter writer.py train --model "$qwen" --examples "$out/examples" --minutes "${TRAIN_MINUTES:-8}"
    # Not a step: it continues a folder, does nothing where all is written, and fails while lines are unwritten.
    run written "$python" "$here/writer.py" write "${writer[@]}" --out "$out/written" --each 24 --minutes "${WRITE_MINUTES:-15}"
fi
step teacher make_policy.py --base "$base" --whole "${texts[@]}" "${written[@]}" \
    --natural 0.4 --tokens 50e6 --batch 16384 --lr 4e-4 --all-until 0.15
policy=("${texts[@]}" --teacher "$out/teacher" --batch 49152)
step policy make_policy.py --base "$base" "${policy[@]}" "${written[@]}" \
    --natural 0.4 --tokens 300e6 --lr 3e-3 --all-until 0.15
if [ -n "$qwen" ]; then
    step sampled.jsonl.gz sample_replies.py --model "$out/policy" --written "$out/written" --dialogues 8000
    step read.jsonl.gz writer.py read "${writer[@]}" --sampled "$out/sampled.jsonl.gz"
    policy+=("${rated[@]}" --least 0.95)
fi
step refined make_policy.py --start "$out/policy" "${policy[@]}" \
    --tokens 120e6 --lr 1e-3 --all-until 0 --natural 0.8 --seed 1
judge=(--tokens 60e6 --batch 24576 --dialogues 60000)
step judge make_judge.py --policy "$out/refined" --start --part even --seed 1 "${rated[@]}" "${judge[@]}" & first=$!
step judge_2 make_judge.py --policy "$out/refined" --base "$base" --part odd --seed 2 "${rated[@]}" "${judge[@]}" & second=$!
failed=0
wait "$first" || failed=1
wait "$second" || failed=1
[ "$failed" = 0 ] || exit 1
echo "$(date +%T) ready: $out/refined $out/judge $out/judge_2"
