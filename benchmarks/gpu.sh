#!/bin/sh
# What one big GPU makes of this code, in less than ten minutes; see benchmarks/gpu.py.
#
#     benchmarks/gpu.sh [--output FOLDER] [--seconds 540] [--repetitions 3] [--tiny]
#
# It needs a Python with torch 2.11 and transformers 5.17 or later, which PYTHON names, and no
# network. Packages that this Python lacks come from build/gpu-wheels (`make gpu-wheels`).
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
"$python" "$root/benchmarks/gpu_wheels.py" unpack "$root/build/gpu-wheels" "$site"
export PYTHONPATH="$site:$root/src:$root/benchmarks${PYTHONPATH:+:$PYTHONPATH}"
export HF_HUB_OFFLINE=1
timeout 585 "$python" -u "$root/benchmarks/gpu.py" "$@"
