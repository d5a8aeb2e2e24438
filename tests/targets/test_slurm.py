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
exec "${@:9}"
"""
SCONTROL = "#!/bin/bash\necho localhost\necho localhost\n"
TOLD = '#!/bin/bash\necho "${0##*/} $*"\n'  # a stand-in that says how it was called


def under_slurm(
    folder: Path, machines: int, commands: dict[str, str], config: Path, run_dir: Path
) -> subprocess.CompletedProcess[str]:
    """Run the example with stand-ins for `commands`, on machines with 16 CPUs."""
    folder.mkdir()
    for name, text in commands.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    environment = {
        **os.environ,
        **ENVIRONMENT,
        "PATH": os.pathsep.join(
            [str(folder), str(Path(sys.executable).parent), os.environ["PATH"]]
        ),
        "SLURM_JOB_NODELIST": ",".join(["localhost"] * machines),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_NNODES": str(machines),
        "SLURM_CPUS_ON_NODE": "16",
    }
    words = ["bash", ROOT / "scripts" / "slurm.sh", config, run_dir]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("machines", [1, 3])
def test_the_other_machines_get_all_of_their_cpus_and_none_is_asked_for_if_there_is_none(
    tmp_path: Path, machines: int
):
    commands = {"srun": TOLD, "mugrpo": TOLD, "scontrol": SCONTROL}
    ended = under_slurm(tmp_path / "bin", machines, commands, Path("config"), Path("run"))
    assert ended.returncode == 0, ended
    told = sorted(" ".join(line.split()[:10]) for line in ended.stdout.splitlines())
    train = f"mugrpo train config --run-dir run --distributed.machines {machines}"
    others = "srun --nodes 2 --ntasks 2 --exclude localhost --cpus-per-task 16 torchrun"
    assert told.pop(0).startswith(train)
    assert told == [others] * (machines > 1)


@pytest.mark.long
def test_the_example_for_slurm_makes_the_run_of_one_machine(tmp_path: Path):
    config = write_config(tmp_path / "config")
    reference, run_dir = tmp_path / "reference", tmp_path / "run"
    commands = {"srun": SRUN, "scontrol": SCONTROL}
    ended = under_slurm(tmp_path / "bin", 2, commands, config, run_dir)
    assert ended.returncode == 0, ended
    finished(reference, "--distributed.processes", "2")
    assert not differences(run_dir, reference)
