#!/bin/sh
# reasoning-gym 0.1.25: some questions of codeio change each time they are read.
#
# Guess (wrong): an item depends on seed and index alone, so reading it twice gives it twice.
# Seen: of the first 100 items, some differ in their question between two readings of the same
# object. The programs behind them draw numbers that no seed reaches. The other sets that can be
# made without options repeat themselves.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet reasoning-gym==0.1.25
cd "$folder"
cat >look.py <<'PY'
from reasoning_gym import create_dataset


def differing(name):
    made = create_dataset(name, size=100, seed=42)
    pairs = ((made[i]["question"], made[i]["question"]) for i in range(100))
    return sum(one != other for one, other in pairs)


found = {name: differing(name) for name in ("codeio", "chain_sum")}
print(found)
assert found["codeio"] > 0 and found["chain_sum"] == 0
PY
"$folder/venv/bin/python" look.py
