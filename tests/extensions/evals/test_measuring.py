"""`mugrpo benchmark` on a model and on a run: what it leaves, and how it goes on."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mugrpo.cli import main
from mugrpo.engines.continuous import ContinuousEngine
from tests.extensions.evals.conftest import suite_in
from tests.runs import Command, finished

SHORT_SHARDS = ("--rollouts.shard_rollouts", "16")  # 12 problems x 4 samples are three shards


def result_in(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return document


def rows_in(folder: Path, kind: str) -> list[dict[str, Any]]:
    files = sorted((folder / kind).glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a measurement of the embedded model. Tests read or copy it."""
    folder = tmp_path_factory.mktemp("measured")
    words = ["benchmark", "chain", "--suite", str(suite_in(folder))]
    assert main([*words, "--out", str(folder / "out"), *SHORT_SHARDS]) == 0
    return folder / "out"


@pytest.fixture
def again(measured: Path, suite: Path, tmp_path: Path) -> tuple[Any, ...]:
    """The words that measure the same into a copy of `measured`."""
    out = shutil.copytree(measured, tmp_path / "out")
    return ("benchmark", "chain", "--suite", suite, "--out", out, *SHORT_SHARDS)


def test_a_result_says_what_its_shards_say(measured: Path):
    """Counted again from the parquet files: avg@4 is the mean over problems of right / 4."""
    folder = measured / "short" / "update-000000"
    rollouts, scores = rows_in(folder, "rollouts"), rows_in(folder, "scores")
    assert len(list((folder / "rollouts").glob("*.parquet"))) == 3
    right: dict[str, list[bool]] = {}
    for rollout, score in zip(rollouts, scores, strict=True):
        right.setdefault(rollout["problem_id"], []).append(score["status"] == "right")
    assert len(right) == 12 and all(len(each) == 4 for each in right.values())
    result = result_in(folder)
    shares = [sum(each) / 4 for each in right.values()]
    value, low, high = result["measures"]["avg@4"]
    assert value == pytest.approx(sum(shares) / 12) and 0 <= low < value < high <= 1
    assert 0 < value < 1, "a test of shares needs both outcomes"
    passed = sum(any(each) for each in right.values()) / 12
    assert result["measures"]["pass@4"][0] == pytest.approx(passed)
    lengths = [len(rollout["response_ids"]) for rollout in rollouts]
    assert result["measures"]["mean_length"][0] == pytest.approx(sum(lengths) / 48)
    assert result["responses"] == 48 == sum(result["statuses"].values())
    table = (measured / "table.md").read_text()
    assert "Short chains" in table and f"{value:.3f} ({low:.3f} to {high:.3f})" in table


def test_what_is_published_is_not_sampled_again(again, tmp_path, command, monkeypatch):
    """One of three shards is lost: its four problems are asked again, and answered the same."""
    folder = tmp_path / "out" / "short" / "update-000000"
    before, measures = rows_in(folder, "rollouts"), result_in(folder)["measures"]
    asked: list[int] = []
    generate = ContinuousEngine.generate

    def counted(engine: Any, requests: Any, **options: Any) -> Any:
        asked.append(len(requests))
        return generate(engine, requests, **options)

    monkeypatch.setattr(ContinuousEngine, "generate", counted)
    assert command(*again).status == 0
    assert asked == []  # not even a trial
    (folder / "rollouts" / "shard-00001.parquet").unlink()
    ended = command(*again)
    assert "shard-00001.parquet is missing; it is made again" in ended.out
    assert asked == [4, 1, 16]  # a trial in short rows and a long one
    assert rows_in(folder, "rollouts") == before
    assert result_in(folder)["measures"] == measures


def test_stored_responses_are_graded_again(again, suite, tmp_path, command, monkeypatch):
    """Another pattern reads the second sum: other verdicts on the very same rollouts."""
    folder = tmp_path / "out" / "short" / "update-000000"
    rollouts, before = rows_in(folder, "rollouts"), result_in(folder)["measures"]["avg@4"]
    monkeypatch.setattr(ContinuousEngine, "generate", None)
    suite.write_text(suite.read_text().replace("=(\\\\d)$", "^(\\\\d)"))
    assert command(*again).status == 0
    assert rows_in(folder, "rollouts") == rollouts
    assert result_in(folder)["measures"]["avg@4"] != before


@pytest.mark.long
def test_a_run_is_sampled_as_it_trains(reference, suite, tmp_path, command):
    """The run trains at temperature 1.3. Updates 0 and 6 are measured, then 3 on demand."""
    run = Path(shutil.copytree(reference, tmp_path / "run"))
    ended = command("benchmark", run, "--suite", suite)
    assert ended.status == 0, ended
    folders = sorted((run / "benchmarks" / "short").iterdir())
    assert [folder.name for folder in folders] == ["update-000000", "update-000006"]
    for folder in folders:
        result = result_in(folder)
        assert (result["temperature"], result["top_p"]) == (1.3, 1.0)
        assert {row["temperature"] for row in rows_in(folder, "rollouts")} == {1.3}
    assert command("benchmark", run, "--suite", suite, "--update", "4").status == 0
    assert command("train", run).status == 0  # the run is still itself
    refused = command("benchmark", run, "--suite", suite, "--update", "7")
    assert refused.status == 2 and "choose among [0, 1, 2, 3, 4, 5, 6]" in refused.err


@pytest.mark.long
def test_results_of_two_runs_are_not_taken_for_each_other(reference, suite, tmp_path, command):
    """Both start from the same model and make six updates, but their weights differ."""
    runs = [Path(shutil.copytree(reference, tmp_path / name)) for name in ("one", "other")]
    finished(tmp_path / "third", "--optimizer.lr", "2e-3")
    out = tmp_path / "out"
    arguments = ("--suite", suite, "--update", "6", "--out", out)
    assert command("benchmark", runs[0], *arguments).status == 0
    assert command("benchmark", runs[1], *arguments).status == 0  # the very same weights
    ended = command("benchmark", tmp_path / "third", *arguments)
    assert ended.status == 2 and "has this suite with weights =" in ended.err


def test_a_suites_file_is_a_config_so_it_never_asks(suite: Path, tmp_path: Path, command: Command):
    code = "def one(completions, **_):\n    return [1.0] * len(completions)\n"
    (tmp_path / "judge.py").write_text(code)
    judge, old = f"{tmp_path}/judge.py:one", 'rewards = [{ name = "regex", pattern = "=(\\\\d)$" }]'
    assert old in suite.read_text()
    mine = suite.with_name("mine.toml")
    new = f'rewards = [{{ name = "function", function = "{judge}", verdict = true }}]'
    mine.write_text(suite.read_text().replace(old, new))
    ended = command("benchmark", "chain", "--suite", mine, "--out", tmp_path / "out")
    assert ended.status == 0, ended


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["chain"], "name suites with --suite"),
        (["chain", "letters", "--suite", "gsm8k"], "one model or run at a time: 'letters'"),
        (["chain", "--suite", "gsm8"], "there is no suite 'gsm8'; did you mean gsm8k?"),
        (["chain", "--suite", "gsm8k,svamp", "--data", "x.jsonl"], "write NAME=FILE,NAME=FILE"),
        (["chain", "--suite", "gsm8k", "--data", "x.jsonl"], "x.jsonl"),
        (["chain", "--suite", "gsm8k", "--update", "3"], "a model has no updates"),
        (["./nowhere", "--suite", "gsm8k"], "nowhere"),
        (["mine.toml", "--suite", "gsm8k"], "name a run, a model directory or a hub id"),
        (["compare", "a"], "compare needs two measurements"),
        (["compare", "a", "b"], "a has no results in a"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = command("benchmark", *arguments)
    assert ended.status == 2 and sentence in ended.err
    assert len(ended.err.splitlines()) == 1 and not list(tmp_path.iterdir())
