#!/bin/bash
# Make the embedded policy and the two judges from the texts in this folder and Qwen2.5-Coder-1.5B-Instruct.
#
#     bash scripts/embedded/make.sh QWEN OUT
#
# QWEN is the model's folder (mapo fetch qwen2.5-coder-1.5b --out QWEN). OUT gets policy/, judge/ and judge_2/. Needs a GPU
# with 140 GB and about an hour. A file or folder that is already in OUT is not made again, so a run can be resumed.
set -euo pipefail
qwen=$(realpath "$1") out=$2
here=$(dirname "$(realpath "$0")")
cd "$here/../.."
mkdir -p "$out"
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
: "${WRITER_MINUTES:=5}" "${WRITE_MINUTES:=20}" "${READER_MINUTES:=3}" "${POLICY_MINUTES:=5}" "${JUDGE_MINUTES:=4}" "${ROUNDS:=2}"

step() { # step NAME COMMAND...: run a command whose output is OUT/NAME
    local name=$1; shift
    [ -e "$out/$name" ] && return
    echo "$(date +%T) $name"
    python "$@" > "$out/$name.log" 2>&1 || { echo "failed: see $out/$name.log"; exit 1; }
}
write() { local task=$1 name=$2; shift 2; step "$name" "$here/write.py" "$task" --model "$qwen" --out "$out/$name" "$@"; }
generated=(--stories "$out/stories.jsonl.gz" --replies "$out/replies.jsonl.gz")
read_sense() { # read_sense NAME OPTIONS: which replies make sense
    local name=$1; shift
    step "$name" "$here/sense.py" read --model "$qwen" --writer "$out/writer" --reader "$out/reader" --out "$out/$name" "$@"
}

write train writer --minutes "$WRITER_MINUTES"
write stories stories.jsonl.gz --writer "$out/writer" --minutes "$WRITE_MINUTES" --slots 640 & first=$!
write replies replies.jsonl.gz --writer "$out/writer" --minutes "$WRITE_MINUTES" --slots 640 & second=$!
wait $first && wait $second
write short short.jsonl.gz --writer "$out/writer" --stories "$out/stories.jsonl.gz" --minutes "$WRITE_MINUTES" --slots 640
step reader "$here/sense.py" train --model "$qwen" --writer "$out/writer" --out "$out/reader" --minutes "$READER_MINUTES"
read_sense sense.jsonl.gz "${generated[@]}" --only-short --said "$out/short.jsonl.gz"
generated+=(--short "$out/short.jsonl.gz")
texts=("${generated[@]}" --sense "$out"/sense*.jsonl.gz)

step policy_0 "$here/make_policy.py" --only-short "${texts[@]}" --out "$out/policy_0" --minutes "$POLICY_MINUTES"

kinds=()
collect() { # collect POLICY NAME: collect what a policy says, name the kinds and read which make sense
    step "said_$2.jsonl.gz" "$here/say.py" --model "$1" --stories "$out/stories.jsonl.gz" --out "$out/said_$2.jsonl.gz" \
        --slots 1024 --seed "${#kinds[@]}"
    write kinds "kinds_$2.jsonl.gz" --writer "$out/writer" --said "$out/said_$2.jsonl.gz"
    read_sense "sense_$2.jsonl.gz" --said "$out/said_$2.jsonl.gz"
    kinds+=("$out/kinds_$2.jsonl.gz")
    texts=("${generated[@]}" --sense "$out"/sense*.jsonl.gz)
}

# The policy goes on with those of its own replies that make sense.
policy=policy_0
for round in $(seq "$ROUNDS"); do
    collect "$out/$policy" "$round"
    step "policy_$round" "$here/make_policy.py" --only-short "${texts[@]}" --policy-replies "${kinds[@]}" --start "$out/$policy" \
        --tokenizer "$out/policy_0/tokenizer.json" --tokens 40e6 --lr 6e-4 --dropout 0.15 --dialogues 50000 --out "$out/policy_$round"
    policy=policy_$round
done
collect "$out/$policy" last

judge() { # judge NAME PART SEED [OPTIONS]
    local name=$1 part=$2 seed=$3; shift 3
    step "$name" "$here/make_judge.py" "${texts[@]}" --policy-replies "${kinds[@]}" --part "$part" --seed "$seed" \
        --tokenizer "$out/policy_0/tokenizer.json" --minutes "$JUDGE_MINUTES" --out "$out/$name" "$@"
}
judge judge_0 even 1 & first=$!
judge judge_2_0 odd 2 & second=$!
wait $first && wait $second

# A policy that was trained against the first judge shows what deceives it; both judges learn from that.
step trained -m mapo train "$here/adversary.toml" "model.source=$out/$policy" "roles.judge.model=local:$out/judge_0" \
    --out "$out/trained"
step deceiver -m mapo export "$out/trained" --step last --out "$out/deceiver"
collect "$out/deceiver" deceiver
export JUDGE_MINUTES=$(python -c "print($JUDGE_MINUTES / 2)")
judge judge even 1 --start "$out/judge_0" & first=$!
judge judge_2 odd 2 --start "$out/judge_2_0" & second=$!
wait $first && wait $second
cp -r "$out/$policy" "$out/policy"
echo "$(date +%T) ready: $out/policy $out/judge $out/judge_2"
