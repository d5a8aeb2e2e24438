#!/bin/sh
# math-verify 0.9.0: plain text in scientific notation is read up to its "e".
#
# Guess (wrong): parse("1e3") is 1000, and "3 1/2" is three and a half.
# Seen: both are 1. The former is right for the reference 1 and wrong for 1000; the latter is not
# even a part of what was meant. In LaTeX (1.5 \times 10^3, 3\frac{1}{2}) both are read.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet math-verify==0.9.0
cd "$folder"
cat >look.py <<'PY'
from math_verify import parse, verify

read = {text: str(parse(text)[0]) for text in ("1e3", "3 1/2")}
print(read)
assert read["1e3"] == "1" and read["3 1/2"] == "1"
assert verify(parse("1"), parse("1e3")) and not verify(parse("1000"), parse("1e3"))
assert not verify(parse("3.5"), parse("3 1/2"))
assert verify(parse("3.5"), parse(r"$3\frac{1}{2}$"))
assert verify(parse("1500"), parse(r"$1.5 \times 10^{3}$"))
PY
"$folder/venv/bin/python" look.py
