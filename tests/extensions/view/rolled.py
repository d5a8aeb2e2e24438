"""A hand-made run with rollouts of two stages and two evaluations, in the chain task's tokens."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mugrpo.disk.records import FinishReason, Rollout, Score, Status
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import ShardSet, write_rollouts, write_scores
from mugrpo.engines.base import Completion
from mugrpo.model.pretrained import EMBEDDED
from tests import builders
from tests.report.synthetic import sample, write_config, write_samples

VOCABULARY = json.loads((EMBEDDED["chain"] / "tokenizer.json").read_text())["model"]["vocab"]
RIGHT, WRONG = Score(Status.RIGHT, 1.0), Score(Status.WRONG, 0.0)
HALF = Score(Status.RIGHT, 0.5)
FAILED = Score(Status.ERROR, None, {"reason": "it crashed"})


def ids(text: str) -> list[int]:
    """Return the ids of a text: of its characters, and of <eos> after it."""
    return [*(VOCABULARY[character] for character in text), VOCABULARY["<eos>"]]


def rollout(problem: str, number: int, response: str) -> Rollout:
    """Return a rollout whose tokens had probability 1/2."""
    tokens = np.array(ids(response), np.int32)
    logprobs = np.full(len(tokens), math.log(0.5), np.float32)
    said = Completion(tokens, logprobs, FinishReason.STOP)
    return builders.rollout(problem, number, np.array(ids(problem)[:-1], np.int32), said)


def write_shard(
    folder: Path, shard: int, rollouts: Sequence[Rollout], scores: Sequence[Score]
) -> None:
    """Write a shard of rollouts, and one of scores if there are any."""
    written = ShardSet(folder / "rollouts", "rollouts")
    write_rollouts(written, shard, rollouts)
    if scores:
        belongs = {"rollouts_sha256": written.entry(shard)["sha256"]}
        write_scores(ShardSet(folder / "scores", "scores"), shard, scores, **belongs)


def rolled_run(root: Path) -> Path:
    """Write a run of 10 rollouts.

    Stage 0: shard 0 with two responses to 3+2= and two to 1+1=, shard 1 with one to 2+2=, which has
    no score. Stage 1: two to 3+2=. Evaluations after 0 and 4 updates: one to 3-1= each, and after 4
    a greedy one, too. Update 4 kept the ratios of stage 0's second response to 3+2=.
    """
    write_config(root)
    run = RunDir(root)
    both = [rollout("3+2=", 0, "3+2=5"), rollout("3+2=", 1, "3+2=6")]
    ones = [rollout("1+1=", 0, "1+1=2"), rollout("1+1=", 1, "1+1=3")]
    write_shard(run.stage(0), 0, both + ones, [RIGHT, WRONG, HALF, FAILED])
    write_shard(run.stage(0), 1, [rollout("2+2=", 0, "2+2=4")], [])
    later = [rollout("3+2=", 0, "3+2=7"), rollout("3+2=", 1, "2+3=5")]
    write_shard(run.stage(1), 0, later, [WRONG, RIGHT])
    write_shard(run.evaluation(0), 0, [rollout("3-1=", 0, "3-1=1")], [WRONG])
    write_shard(run.evaluation(4), 0, [rollout("3-1=", 0, "3-1=2")], [RIGHT])
    write_shard(run.evaluation(4), 1, [rollout("3-1=", 0, "3-1=2")], [RIGHT])
    about = {"problem_id": "3+2=", "sample": 1, "status": "wrong", "reward": 0.0}
    about |= {"advantage": -0.5, "reference": "5", "marks": {"clipped": [3], "vetoed": [4]}}
    about |= {"entropies": [0.0, 0.0, 0.0, 0.3, 2.0, 0.0]}
    kept = sample([*"3+2=6", "<eos>"], [1.0, 1.0, 1.0, 2.0, 0.01, 1.0], **about)
    write_samples(root, 4, [kept], stage=0, staleness=3)
    return root
