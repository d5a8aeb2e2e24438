"""scripts/slurm.sh with stand-ins for Slurm: two "machines" that are this one, with a rank each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import ENVIRONMENT, ROOT, differences, finished, write_config

SRUN = """#!/bin/bash
# The options name the machines but the first: one, on which the command runs.
exec "${@:7}"
"""
SCONTROL = "#!/bin/bash\necho localhost\necho localhost\n"


@pytest.mark.long
def test_the_example_for_slurm_makes_the_run_of_one_machine(tmp_path: Path):
    config = write_config(tmp_path / "config")
    reference, run_dir, folder = tmp_path / "reference", tmp_path / "run", tmp_path / "bin"
    folder.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    environment = {
        **os.environ,
        **ENVIRONMENT,
        "PATH": os.pathsep.join(
            [str(folder), str(Path(sys.executable).parent), os.environ["PATH"]]
        ),
        "SLURM_JOB_NODELIST": "localhost,localhost",
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_NNODES": "2",
    }
    words = ["bash", ROOT / "scripts" / "slurm.sh", config, run_dir]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended
    finished(reference, "--distributed.processes", "2")
    assert not differences(run_dir, reference)
