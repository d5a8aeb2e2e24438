#!/bin/sh
# pyarrow 26.0.1: use_byte_stream_split=True changes nothing unless dictionaries are switched off.
#
# Guess (wrong): asking for both encodings of a column, of which only one can be, is an error.
# Seen: the file is the same to the byte, with a dictionary; 35 % smaller (zstd, normal float32) with
# use_dictionary=False beside it.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1 numpy==2.4.6
cd "$folder"
cat >look.py <<'PY'
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

numbers = np.random.default_rng(0).normal(size=100_000).astype("float32")
table = pa.table({"logprob": numbers})


def written(**options):
    pq.write_table(table, "file.parquet", compression="zstd", **options)
    column = pq.ParquetFile("file.parquet").metadata.row_group(0).column(0)
    return os.path.getsize("file.parquet"), "BYTE_STREAM_SPLIT" in column.encodings


plain, asked = written(), written(use_byte_stream_split=True)
alone = written(use_byte_stream_split=True, use_dictionary=False)
print(plain, asked, alone)
assert asked == plain and not asked[1]
assert alone[1] and alone[0] < 0.7 * asked[0]
PY
"$folder/venv/bin/python" look.py
