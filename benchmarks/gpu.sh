#!/bin/sh
# Generation and updates on one big GPU, in less than nine minutes; see benchmarks/gpu.py.
#
#     benchmarks/gpu.sh [--output FOLDER] [--seconds 480] [--repetitions 3] [--tiny]
#
# Only the project's dependencies must be installed. PYTHON names another interpreter.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH="$root/src:$root/benchmarks${PYTHONPATH:+:$PYTHONPATH}"
exec timeout 535 "${PYTHON:-python3}" -u "$root/benchmarks/gpu.py" "$@"
