"""The golden traces: five updates of two methods on stored rollouts, whose numbers must not drift.

    python -m tests.golden_trace --record        record tests/golden/trace.json again
    python -m tests.golden_trace                 print the traces as they would be now

The rollouts and scores are ordinary shards beside the traces. They are made again only if they are
missing or come from another embedded model.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from mugrpo.config.load import build_config
from mugrpo.config.run import ModelOptions, RunConfig
from mugrpo.disk.shards import RowReader, ShardSet, rollout_from_row, score_from_row
from mugrpo.engines import make_engine
from mugrpo.model.policy import load_policy
from mugrpo.model.pretrained import model_fingerprint
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.trainer import Trainer
from mugrpo.rollouts.prompts import PromptEncoder
from mugrpo.rollouts.sampler import Sampler
from mugrpo.rollouts.score import Scorer
from mugrpo.tasks import make_task

FOLDER = Path(__file__).parent / "golden"
TRACE = FOLDER / "trace.json"
MODEL = ModelOptions()
KEYS = ("loss", "grad_norm", "ratio/negative/max", "entropy", "kl_behavior")
# method -> its further metrics
MARKS = {"mu-grpo": ("clipped_fraction", "vetoed_fraction"), "tapered-grpo": ("tapered_fraction",)}


def config_of(preset: str, **parts: dict[str, Any]) -> RunConfig:
    """Return a config of five updates of 4 problems x 4 responses."""
    schedule = {"stages": 1, "batches_per_stage": 5, "growth": 1.0}
    schedule |= {"problems_per_update": 4, "group_size": 4}
    optimizer = {"lr": 5e-4, "lr_schedule": "constant", "betas": (0.9, 0.999)}
    groups = {"schedule": schedule, "optimizer": {**optimizer, "micro_batch_tokens": 400}}
    return build_config({"preset": preset, **groups, **parts}, "the golden trace")


CONFIGS = {
    # A narrow interval and a large threshold, so that five updates clip and veto.
    "mu-grpo": config_of(
        "mu-grpo",
        objective={"name": "grpo", "ratio_clip": [0.0, 1.1]},
        veto={"name": "negative_advantage", "threshold": 0.3},
    ),
    "tapered-grpo": config_of("tapered-grpo", objective={"negative_weight": 0.25}),
}
CONFIG = CONFIGS["mu-grpo"]


def make_rollouts(folder: Path) -> None:
    """Sample and score the groups of all five updates into one shard each."""
    shutil.rmtree(folder, ignore_errors=True)
    policy, task = load_policy(MODEL), make_task(CONFIG.task)
    schedule = CONFIG.schedule
    groups = schedule.batches_per_stage * schedule.problems_per_update
    problems = task.train_problems()[:groups]
    sampler = Sampler(
        make_engine(policy, CONFIG.engine),
        PromptEncoder(policy.tokenizer, policy.vocab_size, CONFIG.prompt),
        seed=CONFIG.seed,
        stage="0",
        group_size=CONFIG.schedule.group_size,
        temperature=CONFIG.rollouts.temperature,
        max_new_tokens=CONFIG.rollouts.max_new_tokens,
        policy_step=0,
    )
    rollouts = ShardSet(folder / "rollouts", "rollouts")
    draws = [(problem, 0) for problem in problems]
    sampler.sample_shard(draws, lambda _: None).publish(rollouts, 0)
    scorer = Scorer(task, problems, policy.tokenizer, CONFIG.rewards, max_new_tokens=48)
    scorer.make_shard(rollouts, ShardSet(folder / "scores", "scores"), 0)


def trace(method: str) -> list[dict[str, Any]]:
    """Return the metrics in KEYS and MARKS of each update on the stored rollouts."""
    config = CONFIGS[method]
    trainer = Trainer(load_policy(MODEL), config)
    rollouts = RowReader(ShardSet(FOLDER / "rollouts", "rollouts"))
    scores = RowReader(ShardSet(FOLDER / "scores", "scores"))
    size = config.schedule.rollouts_per_update
    lines = []
    for update in range(config.schedule.total_updates):
        places = [(0, row) for row in range(update * size, (update + 1) * size)]
        experience = Experience(
            [rollout_from_row(row) for row in rollouts.rows(places)],
            [score_from_row(row) for row in scores.rows(places)],
        )
        metrics = trainer.step(experience)
        # The ratios of update 0 are 1: rounding alone decides which of its tokens are tapered.
        marks = () if update == 0 and method == "tapered-grpo" else MARKS[method]
        lines.append({key: metrics[key] for key in (*KEYS, *marks)})
    return lines


def recorded() -> dict[str, Any]:
    """Return the stored trace of each method, and the fingerprint of the rollouts' model."""
    stored: dict[str, Any] = json.loads(TRACE.read_text()) if TRACE.exists() else {}
    return stored


def record() -> None:
    model = model_fingerprint(MODEL)
    if recorded().get("model_sha256") != model or not (FOLDER / "rollouts").exists():
        make_rollouts(FOLDER)
    traces = {method: trace(method) for method in CONFIGS}
    TRACE.write_text(json.dumps({"model_sha256": model, **traces}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="write tests/golden")
    if parser.parse_args().record:
        record()
        print(f"recorded {TRACE}")
    else:
        print(json.dumps({method: trace(method) for method in CONFIGS}, indent=1))


if __name__ == "__main__":
    main()
