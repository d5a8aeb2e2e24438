#!/bin/sh
# reasoning-gym 0.1.25: a negative index gives a question that the data set does not have.
#
# Guess (wrong): made[-1] raises IndexError, as indices at or above the size do, or is the last item.
# Seen: it is a further question, made from the seed before the first. Held-out problems that are
# counted from the end (-1, -2, ...) are silently others, of other sets with a nearby seed perhaps.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet reasoning-gym==0.1.25
cd "$folder"
cat >look.py <<'PY'
from reasoning_gym import create_dataset

made = create_dataset("chain_sum", size=5, seed=42)
questions = [made[i]["question"] for i in range(5)]
print("the last of five:", questions[-1], "| index -1:", made[-1]["question"])
assert made[-1]["question"] not in questions
before = create_dataset("chain_sum", size=5, seed=41)
print("the first with the seed before:", before[0]["question"])
assert made[-1]["question"] == before[0]["question"]
PY
"$folder/venv/bin/python" look.py
