#!/usr/bin/env bash
# What SmolLM2 forgets when it learns one-digit addition, or GSM8K: suites before and after (about an
# hour on two cores, after `make smollm2`). The page is studies/results/forgetting/README.md.
#
#     studies/forgetting.sh            # data sets from the hub
#     DATA=folder studies/forgetting.sh    # folder/gsm8k_train.jsonl, gsm8k_test.jsonl, svamp.jsonl
#
# The files have the columns problem and answer.
set -euo pipefail
cd "$(dirname "$0")/.."
work=${WORK:-runs/forgetting}
data=() train=()
if [ -n "${DATA:-}" ]; then
  data=(--data "gsm8k=$DATA/gsm8k_test.jsonl,svamp=$DATA/svamp.jsonl")
  train=(--task.data "$DATA/gsm8k_train.jsonl" --task.subset none --task.prompt_column problem)
fi
measure() {
  mugrpo benchmark "$@" --suite gsm8k,svamp "${data[@]}" --problems 100 --samples 2 --max-new-tokens 256
}
mugrpo train configs/smollm2_addition.toml --run-dir "$work/addition" --evaluation.every 24
measure "$work/addition"
mugrpo train configs/gsm8k.toml --run-dir "$work/gsm8k" "${train[@]}" \
  --schedule.stages 2 --schedule.growth 1
measure "$work/gsm8k" --update 16
mugrpo benchmark compare "$work/addition@0" "$work/addition"
mugrpo benchmark compare "$work/addition@0" "$work/gsm8k"
