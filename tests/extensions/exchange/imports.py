"""A config, rollouts in the forms of other programs, and runs that import them, for tests."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import mugrpo
from mugrpo.disk.records import Rollout, Score
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import RowReader, ShardSet, read_rollouts, score_from_row
from mugrpo.model.loading import load_tokenizer
from tests.runs import MODEL, Ended

CONFIG = """
seed = 10
preset = "mu-grpo"
workers = { count = 1 }
schedule = { problems_per_update = 1 }

[task]
name = "dataset"
rewards = { name = "regex", pattern = "=([0-9])$" }

[rollouts]
shard_rollouts = 4
max_new_tokens = 8
"""

EOS = 1  # of the embedded model
RESPONSES = {"3+2=": ("3+2=5", "3+2=6"), "2-1=": ("2-1=1", "2-1=0")}
Row = dict[str, Any]
TOKENIZER = load_tokenizer(mugrpo.load_config().model)
CHARACTERS = {character: TOKENIZER(character)["input_ids"][0] for character in "0123456789+-="}


def config_in(folder: Path, text: str = CONFIG) -> Path:
    (folder / "theirs.toml").write_text(text)
    return folder / "theirs.toml"


def table(**columns: Sequence[Any]) -> list[Row]:
    """Return the four rows of RESPONSES with prompt, response, reward, answer and `columns`."""
    pairs = [(prompt, text) for prompt, texts in RESPONSES.items() for text in texts]
    rewards = itertools.cycle((1.0, 0.0))
    rows = [
        {"prompt": prompt, "response": text, "reward": reward, "answer": RESPONSES[prompt][0][-1]}
        for (prompt, text), reward in zip(pairs, rewards, strict=False)
    ]
    return [
        row | {name: values[number] for name, values in columns.items()}
        for number, row in enumerate(rows)
    ]


def lines(rows: Sequence[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def imported(run_dir: Path) -> dict[tuple[str, int], tuple[Rollout, Score]]:
    """Return (problem id, sample) -> rollout and score of a run's first stage."""
    folder = RunDir(run_dir)
    kinds = ("rollouts", "scores")
    rollouts, scores = (ShardSet(folder.shards(0, kind), kind) for kind in kinds)
    reader = RowReader(scores)
    return {
        (r.problem_id, r.sample): (r, score_from_row(reader.rows([(shard, row)])[0]))
        for shard in rollouts.numbers()
        for row, r in enumerate(read_rollouts(rollouts, shard))
    }


def by_text(run_dir: Path, tokenizer: Any) -> dict[tuple[str, str], tuple[Rollout, Score]]:
    """Return (prompt, response) -> rollout and score of a run's first stage, as texts."""
    decode = tokenizer.decode
    return {
        (decode(r.prompt_ids), decode(r.response_ids, skip_special_tokens=True)): (r, score)
        for r, score in imported(run_dir).values()
    }


def notes(run_dir: Path) -> dict[str, Any]:
    """Return the entry of the first shard of rollouts."""
    return ShardSet(RunDir(run_dir).shards(0, "rollouts"), "rollouts").entry(0)


def ids_of(text: str) -> list[int]:
    return [CHARACTERS[character] for character in text]


def logprobs_of(prompt: str, response: list[int], temperature: float = 1.0) -> np.ndarray:
    """Return the embedded model's logprobs of a response, by a plain forward pass."""
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    ids = torch.tensor([[*ids_of(prompt), *response]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(-1, ids[0, len(prompt) :, None])[:, 0].numpy()


def chat(folder: Path, special: str) -> str:
    """Return the part of a config for a chat template that puts a text around the user's turn."""
    (folder / "chat.jinja").write_text(f"{special}{{{{ messages[0]['content'] }}}}{special}")
    return f'[prompt]\nform = "chat"\nchat_template = "{folder / "chat.jinja"}"\n'


def given_rows(run_dir: Path, **columns: Sequence[Any]) -> list[tuple[Row, Rollout, Score]]:
    """Return each row of `table`, with `columns`, and the rollout and score that a run has of it.

    They have the row's ids and logprobs.
    """
    found = by_text(run_dir, TOKENIZER)
    rows = table(**columns)
    assert len(found) == len(rows)
    for row in rows:
        rollout, _ = found[row["prompt"], row["response"]]
        assert rollout.prompt_ids.tolist() == ids_of(row["prompt"])
        assert rollout.response_ids.tolist() == row["response_ids"]
        assert rollout.behavior_logprobs.tolist() == np.float32(row["logprobs"]).tolist()
    return [(row, *found[row["prompt"], row["response"]]) for row in rows]


def checked(ended: Ended) -> Ended:
    assert (ended.status, ended.err) == (0, ""), ended
    return ended


GIVEN = {
    "response_ids": [[*ids_of(text), EOS] for texts in RESPONSES.values() for text in texts],
    "logprobs": [[-0.1 * n - 0.01 * t for t in range(6)] for n in range(4)],
}
