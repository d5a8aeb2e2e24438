"""Are a run's bits the same again, and the same when it is killed and resumed?

    python -m card.resume [--tiny]

Four updates in two stages of the embedded task, in fp32 and in bf16: twice, and once more with a
SIGKILL in the last update. The files of the last checkpoints are compared.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from card.work import tell
from side_by_side import ROOT, parser

CONFIG = """\
seed = 3
task.train_problems = 256
evaluation.every = 0
schedule = { stages = 2, batches_per_stage = 2, problems_per_update = PROBLEMS, group_size = 8 }
engine = { name = "continuous", slots = 256 }
checkpoint.every = 1
"""


def train(folder: Path, precision: str, *words: str) -> tuple[int, float]:
    """Train the run in `folder`, under the module that `words` name; return status and seconds."""
    began = time.perf_counter()
    command = ["train", str(folder.parent / "short.toml"), "--run-dir", str(folder)]
    command += ["--model.precision", precision]
    with open(folder.parent / "log", "a") as log:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                *(words or ["mugrpo"]),
                *command,
                "--model.precision",
                precision,
            ],
            stdout=log,
            stderr=log,
            env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ['PYTHONPATH']}"},
        )
    return done.returncode, time.perf_counter() - began


def same_files(ours: Path, theirs: Path) -> str:
    """Return how many files of the runs' last checkpoints are equal."""
    last = sorted((ours / "checkpoints").iterdir())[-1]
    files = sorted(last.glob("*.safetensors"))
    there = theirs / "checkpoints" / last.name
    equal = [f.read_bytes() == (there / f.name).read_bytes() for f in files]
    return f"{sum(equal)} of {len(files)}"


def compared(precision: str, *, tiny: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "short.toml").write_text(CONFIG.replace("PROBLEMS", "2" if tiny else "16"))
        row: dict[str, Any] = {"": precision}
        ended, seconds = train(folder / "first", precision)
        again, _ = train(folder / "again", precision)
        killed, _ = train(folder / "killed", precision, "tests.kill_at", "gradient", "4")
        resumed, _ = train(folder / "killed", precision)
        if (ended, again, killed, resumed) != (0, 0, -signal.SIGKILL, 0):
            print((folder / "log").read_text()[-2000:])
            return row | {"failed": f"{ended}, {again}, {killed}, {resumed}"}
        row["run in s"] = seconds
        row["files equal, again"] = same_files(folder / "first", folder / "again")
        return row | {"files equal, resumed": same_files(folder / "first", folder / "killed")}


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    options = parser(__doc__ or "", output="folder for the JSON file").parse_args(argv)
    rows = [compared(precision, tiny=options.tiny) for precision in ("fp32", "bf16")]
    return tell("resume", "Two equal runs, and one killed and resumed", rows, options)


if __name__ == "__main__":
    main()
