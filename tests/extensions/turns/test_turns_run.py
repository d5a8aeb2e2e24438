"""A run whose responses have turns: training, evaluation, and its export."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from mugrpo.disk.shards import ShardSet, read_rollouts
from tests.runs import CONFIG, mugrpo, read_metrics, shard_path

ENVIRONMENT = '''
"""Asks for another sum after each answer, twice or three times, and counts digits."""


def asks(messages, seed, start, log_metric):
    said = [m["content"] for m in messages if m["role"] == "assistant"]
    if len(said) <= 1 + seed % 2:
        return f"{start}+{len(said)}="
    digits = sum(character.isdigit() for text in said for character in text)
    log_metric("digits", digits)
    return min(1.0, digits / 20)
'''
SETTING = """
[task]
name = "dataset"
data = "{folder}/sums.jsonl"
rewards = ["environment"]
eval_share = 0.15
[environment]
name = "{folder}/asks.py:asks"
[workers]
count = 1
"""


def write_turns(folder: Path) -> Path:
    """Return the config in `folder`; create it and the files that it names if it is missing."""
    if (folder / "turns.toml").exists():
        return folder / "turns.toml"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"prompt": f"{n % 9 + 1}+{n % 7}=", "answer": "0", "start": n % 5} for n in range(28)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "asks.py").write_text(ENVIRONMENT)
    text = CONFIG
    for own, ours in {
        "[task]\ntrain_problems = 24\neval_problems = 4\n": SETTING.format(folder=folder),
        'name = "hf"': 'name = "continuous"',
        "max_new_tokens = 8": "max_new_tokens = 60",
    }.items():
        assert own in text
        text = text.replace(own, ours)
    (folder / "turns.toml").write_text(text)
    return folder / "turns.toml"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_turns(tmp_path_factory.mktemp("turns"))


@pytest.fixture(scope="module")
def trained(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    ended = mugrpo("train", config, "--run-dir", run_dir, "--trust", "--schedule.stages", 1)
    assert ended.status == 0, ended
    return run_dir


def test_every_rollout_has_its_turns_and_its_environments_reward(trained: Path):
    rollouts = pq.read_table(shard_path(trained, 0, 0)).to_pylist()
    scores = pq.read_table(shard_path(trained, 0, 0, "scores")).to_pylist()
    turns = Counter(len(r["turns"]) for r in rollouts if r["finish_reason"] == "stop")
    assert turns.keys() == {2, 3}
    for rollout, score in zip(rollouts, scores, strict=True):
        mask = np.array(rollout["loss_mask"])
        assert mask[rollout["turns"]].all() and not mask.all()
        if rollout["finish_reason"] == "stop":
            assert len(rollout["turns"]) == rollout["seed"] % 2 + 2
            outcome = json.loads(rollout["environment"])
            assert score["reward"] == outcome["reward"]
    (first, *_) = [m for m in read_metrics(trained) if m["kind"] == "refresh"]
    assert first["logged/digits"] > 0


def test_updates_and_evaluations_count_what_was_sampled(trained: Path):
    lines = read_metrics(trained)
    updates = [line for line in lines if line["kind"] == "update"]
    assert len(updates) == 3 and all(line["tokens"] > 0 for line in updates)
    assert any(line["ratio/positive/p50"] not in (None, 1) for line in updates)
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    assert evaluations and all(0 < line["entropy"] < 3 for line in evaluations)


@pytest.mark.long
def test_an_export_is_imported_with_its_turns(config: Path, trained: Path, tmp_path: Path):
    ended = mugrpo("export", trained, tmp_path / "set", "--stage", 0, "--trust")
    assert ended.status == 0, ended
    ended = mugrpo("import", config, tmp_path / "set", "--run-dir", tmp_path / "run")
    assert ended.status == 0, ended

    def facts(run_dir: Path) -> list[str]:
        folder = run_dir / "stages" / "000" / "rollouts"
        shards = ShardSet(folder, "rollouts")
        rollouts = [r for shard in shards.numbers() for r in read_rollouts(shards, shard)]
        names = ("prompt_ids", "response_ids", "behavior_logprobs", "loss_mask", "turns")
        arrays = [[getattr(r, name).tolist() for name in names] for r in rollouts]
        others = [(r.finish_reason, r.environment) for r in rollouts]
        return sorted(map(repr, zip(arrays, others, strict=True)))

    assert facts(tmp_path / "run") == facts(trained)
    assert len(facts(trained)) == 24
