"""Peak memory of a run with a stage of 4 updates and of one with a stage of 1024: `make memory`.

Each run is its own process on the embedded task. The peak is the maximum resident set size that the
operating system reports. Prints both peaks and their ratio. Rollouts are streamed, so memory must
not grow with the stage.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CONFIG = """
[engine]
name = "hf"
batch_size = 256
[rollouts]
shard_rollouts = 512
[schedule]
stages = 1
batches_per_stage = {updates}
[evaluation]
every = 0
[optimizer]
lr = 1e-5
"""


def peak_mib(updates: int, folder: Path) -> float:
    """Return the peak resident memory in MiB of a run with one stage of `updates` updates."""
    config = folder / f"updates-{updates}.toml"
    config.write_text(CONFIG.format(updates=updates))
    run_dir = folder / f"run-{updates}"
    command = [sys.executable, "-m", "mugrpo", "train", str(config), "--run-dir", str(run_dir)]
    child = subprocess.Popen(command, stdout=sys.stderr)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"the run with {updates} updates ended with status {child.returncode}")
    return usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", type=int, default=4)
    parser.add_argument("--large", type=int, default=1024)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        small = peak_mib(options.small, Path(folder))
        large = peak_mib(options.large, Path(folder))
    print(
        json.dumps(
            {
                f"peak_mib_{options.small}_updates": round(small, 1),
                f"peak_mib_{options.large}_updates": round(large, 1),
                "ratio": round(large / small, 4),
            }
        )
    )


if __name__ == "__main__":
    main()
