#!/bin/sh
# transformers 5.23.0: AutoTokenizer makes up a tokenizer for folders that a model was saved to alone.
#
# Guess (wrong): AutoTokenizer refuses a folder without a tokenizer's files, whatever the model.
# Seen: it refuses that of a Llama. For Qwen2, Qwen3 and GPT-2 it returns a tokenizer of one token, by
# which every text is an empty list of ids; for Gemma every text is one unknown token. No error and
# no warning: a model saved without its tokenizer is prompted with nothing.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.23.0
cd "$folder"
cat >look.py <<'PY'
from transformers import AutoConfig, AutoTokenizer

seen = {}
for kind in ("llama", "qwen2", "qwen3", "gpt2", "gemma2"):
    AutoConfig.for_model(kind).save_pretrained(kind)  # what saving a model writes beside its weights
    try:
        tokenizer = AutoTokenizer.from_pretrained(kind)
    except ValueError as error:
        seen[kind] = str(error)[:45]
    else:
        seen[kind] = (len(tokenizer), tokenizer.encode("Tom has 3 apples."))
    print(kind, seen[kind])
assert seen["llama"].startswith("Couldn't instantiate the backend tokenizer")
assert seen["qwen2"] == seen["qwen3"] == seen["gpt2"] == (1, [])
assert seen["gemma2"] == (5, [3])
PY
"$folder/venv/bin/python" look.py
