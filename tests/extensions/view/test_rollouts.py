"""All rollouts of a run: what is listed, which a filter allows, and what an opened one holds."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models

from mugrpo.disk.errors import UsageError
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import ShardSet, write_rollouts
from mugrpo.extensions.view.rollouts import Rollouts
from mugrpo.report.samples import shade
from tests.extensions.view.rolled import RIGHT, rolled_run, rollout, write_shard
from tests.faults.harm import summed
from tests.report.synthetic import write_config


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rolled_run(tmp_path_factory.mktemp("rolled") / "run")


@pytest.fixture(scope="module")
def rollouts(run: Path) -> Rollouts:
    return Rollouts(run)


def test_every_rollout_is_listed_stages_first(rollouts: Rollouts):
    rows = rollouts.rows
    assert rollouts.notes == []
    assert [(row.place, row.problem_id, row.sample, row.status, row.reward) for row in rows] == [
        ("0", "3+2=", 0, "right", 1.0),
        ("0", "3+2=", 1, "wrong", 0.0),
        ("0", "1+1=", 0, "right", 0.5),
        ("0", "1+1=", 1, "error", None),
        ("0", "2+2=", 0, "not_scored", None),
        ("1", "3+2=", 0, "wrong", 0.0),
        ("1", "3+2=", 1, "right", 1.0),
        ("eval0", "3-1=", 0, "wrong", 0.0),
        ("eval4", "3-1=", 0, "right", 1.0),
        ("greedy4", "3-1=", 0, "right", 1.0),
    ]
    assert [row.key in rollouts.sampled for row in rows] == [False, True] + [False] * 8


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", list(range(10))),
        ("stage:1", [5, 6]),
        ("stage:1,eval0", [5, 6, 7]),
        ("stage:eval", [7, 8]),
        ("stage:greedy", [9]),
        ("problem:3+2", [0, 1, 5, 6]),
        ("status:wrong,error", [1, 3, 5, 7]),
        ("status:not_scored", [4]),
        ("reward:>=0.5", [0, 2, 6, 8, 9]),
        ("reward:>0.5", [0, 6, 8, 9]),
        ("reward:0.5", [2]),
        ("reward:>0 reward:<1", [2]),
        ("stage:0 status:right reward:1", [0]),
        ("problem:1+1= status:error", [3]),
        ("stage:7", []),
    ],
)
def test_a_filter_allows_what_fits_all_its_words(rollouts, words, expected):
    assert rollouts.matching(words).tolist() == expected


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("status:wrongg", "there is no status 'wrongg'; choose among right, wrong, no_answer"),
        ("reward:high", "reward:high is not a filter; write stage:0"),
        ("2+3", "2+3: is not a filter"),
    ],
)
def test_a_wrong_filter_is_refused_with_the_way_out(rollouts: Rollouts, words: str, sentence: str):
    with pytest.raises(UsageError, match=re.escape(sentence)):
        rollouts.matching(words)


def test_an_opened_rollout_has_what_is_stored_and_nothing_else(rollouts: Rollouts):
    prompt, tokens, advantage = rollouts.open(0)
    assert (prompt, "".join(token.text for token in tokens)) == ("3+2=", "3+2=5<eos>")
    assert {shade(token) for token in tokens} == {"p3"} and advantage is None  # log 2 is 0.69
    _, tokens, advantage = rollouts.open(1)
    assert [shade(token) for token in tokens] == ["", "", "", "a3", "b6", ""]
    assert [token.marks for token in tokens[3:5]] == [("clipped",), ("vetoed",)]
    assert advantage == -0.5


def test_characters_of_several_tokens_are_whole_and_unknown_ids_are_numbers(tmp_path: Path):
    """The tokenizer is the newest checkpoint's. The bytes of the euro sign are E2 82 AC."""
    run = RunDir(tmp_path / "run")
    write_config(run.root)
    words = ["▁It", "▁is", "<0xE2>", "<0x82>", "<0xAC>", "<unk>"]
    model = models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    run.checkpoint(2).mkdir(parents=True)
    tokenizer.save(str(run.checkpoint(2) / "tokenizer.json"))
    ids = np.array([0, 1, 2, 3, 4, 99, 1], np.int32)
    halves = np.full(len(ids), -0.5, np.float32)
    odd = replace(rollout("3+2=", 0, "5"), response_ids=ids, behavior_logprobs=halves)
    write_shard(run.stage(0), 0, [odd], [RIGHT])
    texts = [token.text for token in Rollouts(run.root).open(0)[1]]
    assert texts == ["It", " is", "", "", "€", "⟨99⟩", " is"]


def shard(run: Path, kind: str, number: int = 0, stage: int = 0) -> Path:
    return RunDir(run).shards(stage, kind) / f"shard-{number:05d}.parquet"


def test_a_missing_shard_or_an_unreadable_file_is_one_sentence_and_the_rest_is_listed(
    tmp_path: Path,
):
    run = rolled_run(tmp_path / "run")
    shard(run, "rollouts").unlink()
    rollouts = Rollouts(run)
    assert len(rollouts.rows) == 10 - 4
    (note,) = rollouts.notes
    assert note.startswith(f"{shard(run, 'rollouts')} is missing; run `mugrpo repair RUN`")
    run = rolled_run(tmp_path / "other")
    (RunDir(run).shards(1, "rollouts") / "shard-00000.json").write_text("{")
    RunDir(run).samples(4).write_text('{"update": 4, "samples": [1]}')
    rollouts = Rollouts(run)
    assert len(rollouts.rows) == 8 and len(rollouts.notes) == 2
    assert rollouts.open(1)[2] is None


def test_without_a_tokenizer_ids_are_shown_and_scores_of_other_rollouts_never(tmp_path: Path):
    run = rolled_run(tmp_path / "run")
    config = (run / "config.json").read_text()
    (run / "config.json").write_text(config.replace('{"path": "chain"}', '{"path": "/nowhere"}'))
    summed(run / "config.json")
    rollouts = Rollouts(run)
    assert "token ids are shown, as there is no tokenizer to read" in rollouts.notes[0]
    assert rollouts.open(0)[1][0].text.strip("⟨⟩").isdigit()
    run = rolled_run(tmp_path / "run")
    written = ShardSet(RunDir(run).shards(1, "rollouts"), "rollouts")
    write_rollouts(written, 0, [rollout("3+2=", 0, "5"), rollout("3+2=", 1, "6")])
    assert [Rollouts(run).rows[n].status for n in (5, 6)] == ["not_scored"] * 2
