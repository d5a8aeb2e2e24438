#!/bin/sh
# reasoning-gym 0.1.25: the questions of the data set acre depend on its size.
#
# Guess (wrong): a data set with a seed is a sequence, so the first ten questions are the same for
# size 10 and size 100. It holds for all other sets that can be made without options, but codeio,
# which repeats nothing.
# Seen: of acre, all ten differ. Its objects and rules are drawn for the whole set at once.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet reasoning-gym==0.1.25
cd "$folder"
cat >look.py <<'PY'
from reasoning_gym import create_dataset


def first(name, size):
    made = create_dataset(name, size=size, seed=42)
    return [made[i]["question"] for i in range(10)]


same = {name: first(name, 10) == first(name, 100) for name in ("acre", "chain_sum", "aiw")}
print(same)
assert same == {"acre": False, "chain_sum": True, "aiw": True}
PY
"$folder/venv/bin/python" look.py
