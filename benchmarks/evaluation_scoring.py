"""How long scoring and measuring stored responses takes, and how much memory.

    python benchmarks/evaluation_scoring.py RESULTS/gsm8k/update-000000 --responses 25000 100000

The responses of a measurement are repeated until there are as many as asked for. They are scored
by both graders in worker processes, as `mugrpo benchmark --regrade` does, and then measured. A
process of its own does each number of responses, so that the peaks of memory can be compared.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from mugrpo.config.load import build_config
from mugrpo.disk.records import Rollout
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import ShardSet, read_rollouts, write_rollouts
from mugrpo.engines.base import Engine
from mugrpo.extensions.evals.options import load_suites
from mugrpo.extensions.evals.stand_in import with_data
from mugrpo.extensions.evals.suite import measure_suite, suite_config, suite_run
from mugrpo.processes.stopping import StopFlag
from mugrpo.run.progress import Progress


def no_engines() -> Sequence[Engine]:
    raise AssertionError("every response is stored")


def repeated(stored: Path, target: ShardSet, problems: int, samples: int) -> None:
    """Write `samples` responses to each problem into `target`: the stored ones, over and over."""
    rollouts = ShardSet(stored / "rollouts", "rollouts")
    by_problem: dict[str, list[Rollout]] = {}
    for shard in rollouts.numbers():
        for rollout in read_rollouts(rollouts, shard):
            by_problem.setdefault(rollout.problem_id, []).append(rollout)
    assert len(by_problem) == problems
    groups = [
        [replace(some[sample % len(some)], sample=sample) for sample in range(samples)]
        for some in by_problem.values()
    ]
    per_shard = -(-2048 // samples)
    for shard, start in enumerate(range(0, problems, per_shard)):
        rows = [rollout for group in groups[start : start + per_shard] for rollout in group]
        write_rollouts(target, shard, rows, policy_step=0)


def score(stored: Path, responses: int) -> dict[str, float]:
    """Return the seconds and the peak memory, in MB, of scoring so many responses."""
    result = json.loads((stored / "result.json").read_text())
    problems = result["problems"]
    (suite,) = load_suites(result["suite"])
    suite = with_data(suite, result["data"]).adjusted(
        problems=problems,
        samples=responses // problems,
        **{name: result[name] for name in ("max_new_tokens", "temperature", "top_p")},
    )
    config = suite_config(build_config({"model": {"path": result["model"]}}, "here"), suite)
    with TemporaryDirectory() as folder:
        target = Path(folder) / "out"
        shards = ShardSet(target / "rollouts", "rollouts")
        repeated(stored, shards, problems, suite.options.samples)
        with suite_run(RunDir(Path(folder)), config, suite, Progress(), StopFlag()) as run:
            began = time.monotonic()
            found = measure_suite(run, suite, no_engines, 0, target)
            seconds = time.monotonic() - began
        assert found["responses"] == suite.options.samples * problems
    peak, of_workers = (
        resource.getrusage(who).ru_maxrss / 1000
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return {
        "responses": found["responses"],
        "seconds": seconds,
        "MB": peak,
        "worker MB": of_workers,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "stored", type=Path, help="the folder of a result.json, with a local data file"
    )
    parser.add_argument("--responses", type=int, nargs="+", default=[25_000, 100_000])
    options = parser.parse_args()
    if len(options.responses) == 1:
        print(json.dumps(score(options.stored, options.responses[0])))
        return
    for responses in options.responses:
        command = [sys.executable, __file__, str(options.stored), "--responses", str(responses)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        print(out.splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
