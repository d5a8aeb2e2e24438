"""A run on a mixture: shares, metrics, evaluation by source, and exact resume."""

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.runs import CONFIG, mugrpo, read_metrics, shard_path, write_config

MIXTURE = CONFIG.replace(
    "[task]\ntrain_problems = 24\neval_problems = 4\n",
    """
[task]
name = "mixture"
[[task.sources]]
source = "short"
name = "chain"
terms = 7
train_problems = 10
eval_problems = 2
weight = [2, 0]
[[task.sources]]
source = "long"
name = "chain"
terms = 8
train_problems = 12
eval_problems = 3
""",
)
assert MIXTURE != CONFIG


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("mixed") / "run"
    config = write_config(run_dir.parent / "config", MIXTURE)
    assert mugrpo("train", config, "--run-dir", run_dir).status == 0
    return run_dir


def rollouts(run_dir: Path, stage: int, kind: str = "rollouts") -> list[dict[str, object]]:
    tables = (pq.read_table(shard_path(run_dir, stage, shard, kind)) for shard in range(3))
    return [row for table in tables for row in table.to_pylist()]


def test_stages_lines_and_evaluations_have_the_shares_and_numbers_of_each_source(mixed: Path):
    lines = [line for line in read_metrics(mixed) if line["kind"] == "refresh"]
    for stage, line in enumerate(lines):
        rewards: dict[str, list[float]] = {}
        for rollout, score in zip(
            rollouts(mixed, stage), rollouts(mixed, stage, "scores"), strict=True
        ):
            source = str(rollout["problem_id"]).partition("/")[0]
            rewards.setdefault(source, []).append(float(score["reward"]))  # type: ignore[arg-type]
        found = {key: value for key, value in line.items() if key.startswith("reward/")}
        assert found == {f"reward/{name}": sum(r) / len(r) for name, r in rewards.items()}
        assert [line["share/short"], line["share/long"]] == [[2 / 3, 1 / 3], [0, 1]][stage]
    # Six groups of four: 2 : 1 in the first stage, then only long ones.
    counts = [
        Counter(str(row["problem_id"]).partition("/")[0] for row in rollouts(mixed, stage))
        for stage in range(2)
    ]
    assert counts == [{"short": 16, "long": 8}, {"long": 24}]
    # Two and three problems, one sample each.
    for line in (line for line in read_metrics(mixed) if line["kind"] == "evaluation"):
        parts = [line["accuracy/short"], line["accuracy/long"]]
        assert line["accuracy"] == pytest.approx((2 * parts[0] + 3 * parts[1]) / 5)
        assert line["problems"] == 5 and line["accuracy_low/long"] <= parts[1]
