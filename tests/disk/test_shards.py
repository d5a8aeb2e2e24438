import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from mugrpo.disk import shards as shards_module
from mugrpo.disk.errors import RunStopped
from mugrpo.disk.publishing import publish_json, sha256_of, with_checksum
from mugrpo.disk.records import FinishReason, Outcome, Rollout, Score, Status
from mugrpo.disk.shards import (
    RowReader,
    ShardSet,
    read_rollouts,
    rollout_from_row,
    score_from_row,
    write_rollouts,
    write_scores,
)
from tests.cases import table
from tests.faults.harm import flip_bit, truncate


def made(number: int, problem_id: str = "p", length: int | None = None) -> Rollout:
    """Return a rollout whose fields depend on `number`, with 1 to 7 tokens by default."""
    length = length or number % 7 + 1
    return Rollout(
        problem_id=problem_id,
        occurrence=number % 3,
        sample=number,
        seed=2**64 - 1 - number,
        prompt_ids=np.arange(number % 5 + 1, dtype=np.int32) + number,
        response_ids=np.arange(length, dtype=np.int32) * 1000 + number,
        behavior_logprobs=-np.arange(1, length + 1, dtype=np.float32) / (number + 3),
        finish_reason=FinishReason.STOP if number % 2 else FinishReason.LENGTH,
        temperature=0.5,
        policy_step=2**40 + number,
    )


def assert_same(a: Rollout, b: Rollout) -> None:
    for field in fields(Rollout):
        ours, theirs = getattr(a, field.name), getattr(b, field.name)
        if isinstance(theirs, np.ndarray):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)
        else:
            assert ours == theirs and type(ours) is type(theirs)


@pytest.fixture
def rollouts(tmp_path: Path) -> ShardSet:
    """Shard 0 with three row groups (600 rows), shard 1 with two (300)."""
    shards = ShardSet(tmp_path, "rollouts")
    write_rollouts(shards, 0, [made(i) for i in range(600)])
    write_rollouts(shards, 1, [made(1000 + i) for i in range(300)])
    return ShardSet(tmp_path, "rollouts")


def test_rollouts_come_back_as_they_were_written(tmp_path):
    sent = [made(i, problem_id) for i, problem_id in enumerate(["", "Übung/7", "数学 \n", "🙂'\""])]
    write_rollouts(ShardSet(tmp_path, "rollouts"), 3, sent)
    back = list(read_rollouts(ShardSet(tmp_path, "rollouts"), 3))
    assert len(back) == 4
    for a, b in zip(back, sent, strict=True):
        assert_same(a, b)


def test_rollouts_stream_in_order_across_row_groups(rollouts):
    back = list(read_rollouts(rollouts, 0))
    assert [r.sample for r in back] == list(range(600))
    assert_same(back[511], made(511))


def test_turns_come_back_as_they_were_written_beside_rollouts_without(tmp_path):
    """Old shards lack the columns of turns, and new ones too if no rollout has turns."""
    shards = ShardSet(tmp_path, "rollouts")
    plain, other = made(6), made(5)
    mask = np.array([True, True, False, True, False, True])
    turns = replace(
        other,
        behavior_logprobs=np.where(mask, other.behavior_logprobs, 0).astype(np.float32),
        loss_mask=mask,
        turns=np.array([0, 3, 5], np.int32),
        environment=Outcome(0.5),
    )
    write_rollouts(shards, 0, [plain])
    write_rollouts(shards, 1, [plain, turns, plain])
    assert "loss_mask" not in pq.read_schema(shards.path(0)).names
    for shard, expected in enumerate([[plain], [plain, turns, plain]]):
        for ours, theirs in zip(read_rollouts(shards, shard), expected, strict=True):
            assert_same(ours, theirs)
    places = [(1, 1), (0, 0), (1, 2)]
    back = [rollout_from_row(row) for row in RowReader(shards).rows(places)]
    for ours, theirs in zip(back, [turns, plain, plain], strict=True):
        assert_same(ours, theirs)
    assert (turns.sampled_tokens, plain.sampled_tokens) == (4, 7)
    assert turns.response_ids[turns.sampled].tolist() == [5, 1005, 3005, 5005]


@table(
    ("change", "words"),
    [
        ({"turns": None}, "turns need a loss mask"),
        ({"loss_mask": np.array([True])}, "turns need a loss mask"),
        ({"turns": np.array([1], np.int32)}, "begins with a sampled id"),
        ({"behavior_logprobs": np.array([-1, -2], np.float32)}, "must be 0"),
    ],
)
def test_turns_that_contradict_the_response_are_refused(tmp_path, change, words):
    """Two tokens; the environment said the second one."""
    good = {"loss_mask": np.array([True, False]), "turns": np.array([0], np.int32)}
    good["behavior_logprobs"] = np.array([-1, 0], np.float32)
    with pytest.raises(ValueError, match=words):
        bad = replace(made(0, length=2), **good | change)
        write_rollouts(ShardSet(tmp_path, "rollouts"), 0, [bad])


def test_scores_come_back_as_they_were_written(tmp_path):
    sent = [
        Score(Status.RIGHT, 1.0, {"answer": "4"}),
        Score(Status.WRONG, 0.1, {"größe": [1, {"a": None}]}),
        Score(Status.UNFINISHED, 0.0, {"reason": "Fehler: ≥ 5 s"}),
        Score(Status.ERROR, None),
        Score(Status.TRUNCATED, -0.25),
        Score(Status.NO_ANSWER, 0.0),
    ]
    write_scores(ShardSet(tmp_path, "scores"), 0, sent)
    rows = RowReader(ShardSet(tmp_path, "scores")).rows((0, i) for i in range(6))
    assert [score_from_row(row) for row in rows] == sent


def test_rollouts_on_disk_are_plain_parquet_with_the_documented_columns(rollouts):
    table = pq.read_table(rollouts.path(1))
    assert {f.name: str(f.type).replace("element", "item") for f in table.schema} == {
        "problem_id": "string",
        "occurrence": "int32",
        "sample": "int32",
        "seed": "uint64",
        "prompt_ids": "list<item: int32>",
        "response_ids": "list<item: int32>",
        "behavior_logprobs": "list<item: float>",
        "finish_reason": "string",
        "temperature": "double",
        "policy_step": "int64",
    }
    row = pd.read_parquet(rollouts.path(1)).iloc[2]  # number 1002: length 1002 % 7 + 1 = 2
    assert row["response_ids"].tolist() == [1002, 2002]
    np.testing.assert_allclose(row["behavior_logprobs"], [-1 / 1005, -2 / 1005], rtol=1e-6)
    assert row["seed"] == 2**64 - 1003 and row["finish_reason"] == "length"


def test_scores_on_disk_are_plain_parquet_with_null_for_no_reward(tmp_path):
    shards = ShardSet(tmp_path, "scores")
    write_scores(shards, 0, [Score(Status.RIGHT, 1.0, {"a": 1}), Score(Status.ERROR, None)])
    table = pq.read_table(shards.path(0))
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {"status": "string", "reward": "double", "parts": "string"}
    rows = [("right", 1.0, '{"a": 1}'), ("error", None, "{}")]
    assert table.to_pylist() == [dict(zip(types, row, strict=True)) for row in rows]


def test_rows_come_in_the_order_asked_for_across_shards_and_row_groups(rollouts, monkeypatch):
    places = [(1, 299), (0, 0), (0, 599), (1, 0), (0, 255), (0, 256), (1, 299), (0, 1)]
    numbers = [1299, 0, 599, 1000, 255, 256, 1299, 1]
    for cached in (1, 2, 10):
        monkeypatch.setattr("mugrpo.disk.shards._CACHED", cached)
        back = [rollout_from_row(r) for r in RowReader(rollouts).rows(places)]
        for rollout, number in zip(back, numbers, strict=True):
            assert_same(rollout, made(number))


def test_row_groups_of_another_writer_give_the_same_rows(rollouts, tmp_path):
    table = pq.read_table(rollouts.path(0))
    with pq.ParquetWriter(tmp_path / "shard-00000.parquet", table.schema) as writer:
        for start, end in [(0, 7), (7, 420), (420, 600)]:
            writer.write_table(table.slice(start, end - start))
    path = tmp_path / "shard-00000.parquet"
    entry = {"rows": 600, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
    document = with_checksum({"kind": "rollouts", "shard": entry})
    publish_json(tmp_path / "shard-00000.json", document)
    reader = RowReader(ShardSet(tmp_path, "rollouts"))
    for number in (0, 6, 7, 300, 419, 420, 599):
        assert_same(rollout_from_row(reader.rows([(0, number)])[0]), made(number))


def test_a_shard_that_is_written_again_is_verified_again(tmp_path):
    shards = ShardSet(tmp_path, "rollouts")
    write_rollouts(shards, 0, [made(0)])
    shards.open(0)
    write_rollouts(shards, 0, [made(1)])
    truncate(shards.path(0))
    with pytest.raises(RunStopped, match="repair"):
        shards.open(0)


# Row groups a = (0, 0), b = (0, 1), c = (1, 0), read as a a b a c b a; the one read first goes.
@pytest.mark.parametrize(("limit", "reads"), [(1, 6), (2, 4), (3, 3)])
def test_a_reader_keeps_no_more_row_groups_than_its_limit(rollouts, monkeypatch, limit, reads):
    counted = []
    original = pq.ParquetFile.read_row_group

    def counting(self, number, **kwargs):
        counted.append(number)
        return original(self, number, **kwargs)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counting)
    monkeypatch.setattr("mugrpo.disk.shards._CACHED", limit)
    reader = RowReader(rollouts)
    for place in [(0, 0), (0, 9), (0, 256), (0, 3), (1, 0), (0, 300), (0, 1)]:
        list(reader.rows([place]))
    assert len(counted) == reads


def test_the_entry_says_what_a_shard_holds(rollouts):
    shards = ShardSet(rollouts.folder, "rollouts")
    write_rollouts(shards, 7, [made(0)], slots=3, seconds=0.5)
    stored = [json.loads(file.read_text()) for file in sorted(rollouts.folder.glob("*.json"))]
    assert [(s["kind"], s["shard"]["rows"]) for s in stored] == [
        ("rollouts", 600),
        ("rollouts", 300),
        ("rollouts", 1),
    ]
    again = ShardSet(rollouts.folder, "rollouts")
    assert again.numbers() == [0, 1, 7] and 2 not in again
    notes = {name: again.entry(7)[name] for name in ("tokens", "slots", "seconds")}
    assert notes == {"tokens": len(made(0).response_ids), "slots": 3, "seconds": 0.5}
    assert again.entry(7)["bytes"] == again.path(7).stat().st_size


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip_bit, "does not match its checksum"),
        (truncate, r"has \d+ bytes instead of \d+"),
        (Path.unlink, "is missing"),
    ],
)
def test_a_damaged_shard_stops_every_reader_and_is_named(rollouts, damage, words):
    damage(rollouts.path(1))
    fresh = ShardSet(rollouts.folder, "rollouts")
    message = rf"shard-00001\.parquet {words}; .*repair"
    with pytest.raises(RunStopped, match=message):
        fresh.open(1)
    with pytest.raises(RunStopped, match=message):
        next(read_rollouts(fresh, 1))
    reader = RowReader(fresh)
    with pytest.raises(RunStopped, match=message):
        reader.rows([(0, 0), (1, 0)])
    assert rollout_from_row(reader.rows([(0, 5)])[0]).sample == 5  # the other shard is intact


ENTRY = {"rows": 1, "bytes": 1, "sha256": ""}
ODD = [{"rows": 1}, [], None, *({**ENTRY, "rows": rows} for rows in ("1", True))]


@table("listed", ODD)
def test_an_odd_entry_is_refused_though_its_checksum_fits(tmp_path, listed):
    document = with_checksum({"kind": "rollouts", "shard": listed})
    publish_json(tmp_path / "shard-00000.json", document)
    with pytest.raises(RunStopped, match=r"is no entry of a shard.*`mugrpo repair RUN`"):
        ShardSet(tmp_path, "rollouts").entry(0)


def test_a_shard_is_listed_only_after_its_file_is_there(tmp_path, monkeypatch):
    there = []
    original = shards_module.publish_json

    def killed_before_the_entry(path, value):
        there.append(pq.read_metadata(tmp_path / "shard-00000.parquet").num_rows)
        raise KeyboardInterrupt

    monkeypatch.setattr(shards_module, "publish_json", killed_before_the_entry)
    with pytest.raises(KeyboardInterrupt):
        write_rollouts(ShardSet(tmp_path, "rollouts"), 0, [made(0), made(1)])
    assert there == [2]  # the file was whole when its entry was about to be written
    after = ShardSet(tmp_path, "rollouts")
    assert 0 not in after
    monkeypatch.setattr(shards_module, "publish_json", original)
    write_rollouts(after, 0, [made(5)])  # a shard without an entry is written again
    assert [r.sample for r in read_rollouts(ShardSet(tmp_path, "rollouts"), 0)] == [5]


@table(("ids", "logprobs"), [(3, 2), (2, 3), (0, 0)])
def test_a_rollout_that_contradicts_itself_is_refused_and_nothing_is_written(
    tmp_path, ids, logprobs
):
    changes = {"response_ids": np.zeros(ids, np.int32)}
    changes["behavior_logprobs"] = np.zeros(logprobs, np.float32)
    bad = replace(made(0, "p9"), **changes)
    with pytest.raises(ValueError, match=f"p9/0/0: {ids} response ids with {logprobs} logprobs"):
        write_rollouts(ShardSet(tmp_path, "rollouts"), 0, [made(1), bad])
    assert list(tmp_path.iterdir()) == []


FAILED = {Status.UNFINISHED, Status.SKIPPED, Status.ERROR}
UNREWARDED = {Status.SKIPPED, Status.ERROR}


@table("status", Status)
def test_a_score_has_no_reward_exactly_if_its_status_gives_none(status):
    assert status.failed is (status in FAILED)
    assert status.rewarded is (status not in UNREWARDED)
    allowed, refused = (None, 0.0) if status in UNREWARDED else (0.0, None)
    assert Score(status, allowed).reward == allowed
    with pytest.raises(ValueError, match=f"status '{status.value}' has reward {refused}"):
        Score(status, refused)
