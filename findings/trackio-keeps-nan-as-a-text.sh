#!/bin/sh
# trackio 0.43.0: numbers that are not finite are stored as texts.
#
# Guess (wrong): NaN and infinity become null, as JSON has neither.
# Seen: they become the strings "NaN" and "Infinity" in the database beside numbers of the same
# metric, so what reads the rows as JSON gets a text where a loss was.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet trackio==0.43.0
cd "$folder"
cat >look.py <<'PY'
import json
import os
import sqlite3

os.environ["TRACKIO_DIR"] = os.getcwd()
import trackio

trackio.init(project="p", name="run", embed=False)
for loss in (0.5, float("nan"), float("inf")):
    trackio.log({"loss": loss})
trackio.finish()
rows = sqlite3.connect("p.db").execute("select metrics from metrics order by step")
stored = [json.loads(row[0])["loss"] for row in rows]
print(stored)
assert stored == [0.5, "NaN", "Infinity"]
PY
"$folder/venv/bin/python" look.py
