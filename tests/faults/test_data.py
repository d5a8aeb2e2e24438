"""Bad data and prompts, failing rewards, the canary, and models or packages that are missing."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import numpy as np
import pytest
import transformers.utils.hub
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from mugrpo.engines import continuous
from mugrpo.engines.base import Decoded
from mugrpo.model import policy
from mugrpo.tasks.chain import running_states
from tests.faults.harm import edited, refused, resume_words, stopped
from tests.runs import Command, Ended, mugrpo, read_metrics, shards, state, write_config

pytest_plugins = ["tests.run_fixtures"]

CONFIG = """
seed = 10

[task]
name = "dataset"
data = "DATA"
eval_share = 0.2
rewards = { name = "regex", pattern = "=([0-9])$" }
workers = { count = 1 }

[schedule]
stages = 1
batches_per_stage = 3
problems_per_update = 2
group_size = 4

[rollouts]
shard_rollouts = 24
max_new_tokens = 8
temperature = 1.3

[evaluation]
every = 0
"""

Row = dict[str, Any]


def chain(*terms: int) -> Row:
    """Return the problem "3+2-1=" with the answer "4" for the terms 3, 2 and -1."""
    prompt = f"{terms[0]}{''.join(f'{term:+d}' for term in terms[1:])}="
    return {"prompt": prompt, "answer": str(running_states(prompt)[-1])}


def chains() -> list[Row]:
    """Return 27 problems of eight terms, of the kind that the embedded model knows."""
    beginnings = itertools.product((1, 2, 3), (1, -2, 3), (-1, 2, -3))
    return [chain(*terms, 1, 2, -1, 3, 1) for terms in beginnings]


def lines(rows: list[Row]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


GOOD = lines(chains())


@dataclasses.dataclass
class Case:
    """A folder for a data file and a run on it, and the models loaded so far."""

    folder: Path
    command: Command
    loads: list[str]

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def data(self, content: bytes = GOOD, name: str = "p.jsonl") -> Path:
        (self.folder / name).write_bytes(content)
        return self.folder / name

    def words(self, *options: object, name: str = "p.jsonl") -> list[object]:
        text = CONFIG.replace("DATA", str(self.folder / name))
        return [write_config(self.folder, text), "--run-dir", self.run_dir, *options]

    def train(self, *options: object, name: str = "p.jsonl") -> Ended:
        return self.command("train", *self.words(*options, name=name))

    def refused(self, *options: object, parts: tuple[str, ...], name: str = "p.jsonl") -> None:
        """Check that training is refused before a model is loaded or anything is written."""
        refused(self.train(*options, name=name), *parts)
        assert self.loads == [] and not self.run_dir.exists()

    def starts(self, *options: object, name: str = "p.jsonl") -> Ended:
        """Check that the run starts in the same directory, without --force."""
        return self.starts_in_shards(*options, shards=1, name=name)

    def starts_in_shards(self, *options: object, shards: int, name: str = "p.jsonl") -> Ended:
        ended = self.command("generate", *self.words(*options, name=name))
        assert ended.status == 0, ended
        assert state(self.run_dir).rollouts == (shards, 0) and self.loads
        return ended


@pytest.fixture
def case(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> Case:
    loads: list[str] = []
    load = policy._load_model

    def noted(path: str | Path) -> Any:
        loads.append(str(path))
        return load(path)

    monkeypatch.setattr(policy, "_load_model", noted)
    return Case(tmp_path, command, loads)


def test_a_data_set_of_chains_is_trained_on_from_start_to_end(case: Case):
    case.data()
    ended = case.train("--evaluation.every", 3)
    assert ended.status == 0 and ended.err == ""
    made = read_metrics(case.run_dir)
    assert [line["update"] for line in made if line["kind"] == "update"] == [1, 2, 3]
    (refresh,) = (line for line in made if line["kind"] == "refresh")
    # The prompt holds all but the last step, so most answers are right, but not all.
    assert 0 < refresh["behavior_reward"] < 1
    assert refresh["behavior_reward"] == refresh["status/right"] / 24


# ---- bad data ----


@pytest.mark.parametrize(
    ("there", "option", "hint"),
    [
        ({"question": "q", "answer": "1"}, "prompt_column", "name one of them"),
        ({"prompts": "q", "answer": "1"}, "prompt_column", "did you mean 'prompts'?"),
        ({"prompt": "q", "answers": "1"}, "answer_column", "did you mean 'answers'?"),
    ],
)
def test_a_missing_column_is_refused(case: Case, there: Row, option: str, hint: str):
    prompt, answer = there
    rows = [{prompt: row["prompt"], answer: row["answer"]} for row in chains()]
    data = case.data(lines(rows))
    missing = option.removesuffix("_column")
    parts = (f"{data}, line 1 has no column {missing!r} (it has {prompt!r}, {answer!r}); {hint}",)
    case.refused(parts=(*parts, f"--task.{option}"))
    case.starts(f"--task.{option}", prompt if missing == "prompt" else answer)


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_an_empty_data_set_is_refused(case: Case, content: bytes):
    data = case.data(content)
    case.refused(parts=(f"{data} has no rows",))
    case.data()
    case.starts()


def test_a_data_set_that_is_all_held_out_is_refused(case: Case):
    data = case.data(lines(chains()[:1]))
    case.refused(parts=(f"{data}: no problem is left to train on; lower eval_share",))
    case.starts("--task.eval_share", "0.0", "--schedule.problems_per_update", 1)


def test_evaluation_without_held_out_problems_is_refused(case: Case):
    case.data()
    options = ("--task.eval_share", "0.0", "--evaluation.every", 3)
    case.refused(*options, parts=("no problem is held out", "--evaluation.every 0"))
    case.starts(*options[:2])


def test_duplicate_ids_are_refused(case: Case):
    data = case.data(lines([{**row, "id": n % 26} for n, row in enumerate(chains())]))
    options = ("--task.id_column", "id")
    parts = (f"{data} has the same id twice: '0' ({data}, line 27)", "--task.duplicates drop")
    case.refused(*options, parts=parts)
    case.starts(*options, "--task.duplicates", "drop")


@pytest.mark.parametrize(
    ("prompt", "complaint"),
    [
        (None, "the prompt is null"),
        (7, "the prompt is 7"),
        ("", "the prompt is empty"),
        ([{"role": "robot", "content": "1+1="}], "message 0 of the prompt has role 'robot'"),
        ([{"role": "assistant", "content": "2"}], "the prompt ends with the turn of the assistant"),
        ("1+\ud83d=", "character 2 is half a surrogate pair ('\\ud83d')"),
    ],
)
def test_a_bad_prompt_is_refused(case: Case, prompt: Any, complaint: str):
    data = case.data(GOOD + lines([{"prompt": prompt, "answer": "2"}]))
    case.refused(parts=(f"{data}, line 28: {complaint}",))
    case.data()
    case.starts()


FIRST = b'{"prompt": "1+1=", "answer": "2"}\n'  # 34 bytes


@pytest.mark.parametrize(
    ("content", "name", "complaint"),
    [
        (FIRST + b'{"prompt": "\xe9"}\n', "p.jsonl", "line 2: byte 46 of the file (0xe9) is not"),
        (FIRST + b'{"prompt": }\n', "p.jsonl", "line 2 is not JSON at byte 45 of the file"),
        (FIRST + b"[]\n", "p.jsonl", "line 2 is a list, not an object"),
        ("\ufeffprompt,answer\n".encode("utf-16-le"), "p.csv", " is UTF-16; save it as UTF-8"),
        (b"prompt,answer\n1+1=\n", "p.csv", "line 2 has 1 fields, but the header names 2 columns"),
        (b"prompt", "p.parquet", " cannot be read as parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(
    case: Case, content: bytes, name: str, complaint: str
):
    data = case.data(content, name)
    case.refused(name=name, parts=(str(data), complaint))
    case.starts("--task.data", case.data(name="good.jsonl"), name=name)


@pytest.mark.parametrize("name", ["absent.jsonl", "absent/p.txt", "."])
def test_a_missing_file_is_refused(case: Case, name: str):
    case.data()
    case.refused(parts=(str(case.folder / name),), name=name)
    case.starts("--task.data", case.folder / "p.jsonl", name=name)


def test_half_a_surrogate_pair_is_refused(case: Case):
    data = case.data(GOOD + b'{"prompt": "1+1=\\ud83d", "answer": "2"}\n')
    case.refused(parts=(f"{data}, line 28: character 4 is half a surrogate pair ('\\ud83d')",))
    case.data(GOOD + b'{"prompt": "1+1=", "answer": "\\ud83d"}\n')
    case.refused(parts=(f"{data}, line 28: character 0 is half a surrogate pair ('\\ud83d')",))
    case.data()
    case.starts()


@pytest.mark.parametrize("option", ["split", "subset", "revision", "eval_split"])
def test_options_of_hub_data_are_refused_for_a_local_file(case: Case, option: str):
    data = case.data()
    parts = (f"{data} is a local file, which has no split", "leave 'test' out", "task.eval_data")
    case.refused(f"--task.{option}", "test", parts=parts)
    case.starts()


def test_a_reference_that_the_reward_cannot_compare_with_is_refused(case: Case):
    data = case.data(GOOD + lines([{**chain(1, 1), "answer": "two"}]))
    parts = (f"{data}, line 28: column 'answer' is \"two\"", "the reward numeric cannot compare")
    case.refused("--task.rewards", "numeric", parts=(*parts, "choose another reward"))
    case.starts()


def long(terms: int) -> bytes:
    """Return a chain of ones: 2 x terms tokens, plus 6 for each step except the last."""
    return lines([chain(*[1] * terms)])


def test_prompts_without_room_for_a_response_are_refused_dropped_or_truncated(case: Case):
    """65 terms are 130 + 6 x 63 = 508 tokens. The context of 512 less 8 for a response is 504."""
    case.data(GOOD + long(65) + long(64))
    options = ("--task.eval_share", "0.0")
    parts = ("1 of 29 prompts are longer than the 504 tokens", "(the longest has 508)")
    case.refused(
        *options, parts=(*parts, "lower rollouts.max_new_tokens", "--prompt.overlong drop")
    )
    ended = case.starts(*options, "--prompt.overlong", "drop")
    assert "1 of 29 problems are left out" in ended.out
    shutil.rmtree(case.run_dir)
    assert "left out" not in case.starts(*options, "--prompt.overlong", "truncate").out


def test_a_prompt_longer_than_the_context_is_refused_in_one_sentence(case: Case):
    case.data(GOOD + long(70))
    refused(mugrpo("train", *case.words("--task.eval_share", "0.0")), "(the longest has 548)")


def test_held_out_problems_that_are_dropped_are_reported(case: Case):
    case.data()
    held_out = case.data(lines([chain(1, 1, 1)]) + long(65), "e.jsonl")
    ended = case.starts("--task.eval_data", held_out, "--prompt.overlong", "drop")
    assert "1 of 2 problems are left out: their prompts are too long" in ended.out


def test_a_conversation_in_plain_form_is_refused_and_chat_form_starts(case: Case):
    turns = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in chains()]
    case.data(lines(turns))
    plain = ("--prompt.form", "plain", "--prompt.chat_template", "none")
    case.refused(*plain, parts=("is a conversation; use --prompt.form chat",))
    case.starts()


def test_a_refusal_in_the_first_evaluation_does_not_bind_the_config(case: Case):
    turns = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in chains()]
    case.data(lines(turns))
    plain = ("--prompt.form", "plain", "--prompt.chat_template", "none")
    more = ("--evaluation.every", 3, "--prompt.overlong", "truncate")
    refused(case.train(*plain, *more), "is a conversation; use --prompt.form chat")
    case.starts(*more)


# ---- missing, changed or failing rewards ----


def test_a_missing_file_of_reward_functions_is_refused(case: Case):
    case.data()
    file = case.folder / "mine.py"
    case.refused("--task.rewards", f"{file}:judge", parts=(f"there is no file {file}",))
    file.write_text("def judge(completions, **_):\n    return [1.0] * len(completions)\n")
    case.starts("--task.rewards", f"{file}:judge")


def test_a_misspelled_reward_function_can_be_corrected_without_force(case: Case):
    case.data()
    file = case.folder / "mine.py"
    file.write_text("def judge(completions, **_):\n    return [1.0] * len(completions)\n")
    every = ("--evaluation.every", 3)
    refused(case.train("--task.rewards", f"{file}:jugde", *every), f"{file} has no jugde")
    assert state(case.run_dir).rollouts == (0, 0)
    assert case.train("--task.rewards", f"{file}:judge", *every).status == 0


def test_evaluating_with_a_misspelled_reward_function_does_not_bind_the_config(case: Case):
    case.data()
    file = case.folder / "mine.py"
    file.write_text("def judge(completions, **_):\n    return [1.0] * len(completions)\n")
    words = case.words("--task.rewards", f"{file}:jugde")
    refused(case.command("evaluate", *words), f"{file} has no jugde")
    case.starts("--task.rewards", f"{file}:judge")


def test_a_reward_changed_by_force_does_not_mix_with_the_old_one(case: Case):
    case.data()
    file = case.folder / "mine.py"
    function = "def judge(completions, **_):\n    return [{}] * len(completions)\n"
    file.write_text(function.format(0.25))
    options = ("--task.rewards", f"{file}:judge", "--rollouts.shard_rollouts", 8)
    options = (*options, "--rewards.truncated", "scored")
    case.starts_in_shards(*options, shards=3)
    ended = mugrpo("score", *case.words(*options), at="score shard without manifest", nth=2)
    assert ended.status == -signal.SIGKILL
    file.write_text(function.format(0.75))
    refused(case.command("score", *case.words(*options)), "a reward function's file changed")
    ended = case.command("score", *case.words(*options, "--force"))
    assert ended.status == 0
    manifest = json.loads((case.run_dir / "stages/000/scores/manifest.json").read_text())
    sums = [entry["reward_sum"] for entry in manifest["shards"].values()]
    assert sums == [6.0, 6.0, 6.0]


def test_references_changed_by_force_do_not_mix_with_the_old_ones(case: Case):
    rows = [{**row, "id": n} for n, row in enumerate(chains())]
    case.data(lines(rows))
    options = ("--task.id_column", "id", "--rollouts.shard_rollouts", 8)
    case.starts_in_shards(*options, shards=3)
    ended = mugrpo("score", *case.words(*options), at="score shard without manifest", nth=2)
    assert ended.status == -signal.SIGKILL
    manifest = case.run_dir / "stages/000/scores/manifest.json"
    assert json.loads(manifest.read_text())["shards"]["0"]["reward_sum"] > 0
    case.data(lines([{**row, "answer": "eleven"} for row in rows]))
    refused(case.command("score", *case.words(*options)), "the problems changed")
    assert case.command("score", *case.words(*options, "--force")).status == 0
    entries = json.loads(manifest.read_text())["shards"].values()
    assert [entry["reward_sum"] for entry in entries] == [0, 0, 0]


def test_a_judge_that_fails_in_an_evaluation_leaves_nothing_and_a_resume_evaluates_again(
    case: Case,
):
    """The evaluation's own rollouts are removed with it."""
    case.data()
    file = case.folder / "mine.py"
    file.write_text("def judge(completions, **_):\n    raise ValueError('out of order')\n")
    options = ("--task.rewards", f"{file}:judge", "--evaluation.every", 3)
    options = (*options, "--rewards.truncated", "scored")
    ended = case.train(*options)
    stopped(ended, "could not be judged", "out of order", "the rollouts are kept")
    assert "nothing is generated again" not in ended.err
    assert list((case.run_dir / "evaluations").iterdir()) == []
    assert read_metrics(case.run_dir) == [] and state(case.run_dir).rollouts == (0, 0)
    file.write_text("def judge(completions, **_):\n    return [1.0] * len(completions)\n")
    assert case.command(*resume_words(ended)).status == 0  # the changed file needs no --force
    made = [line for line in read_metrics(case.run_dir) if line["kind"] == "evaluation"]
    assert [(line["update"], line["accuracy"]) for line in made] == [(0, 1.0), (3, 1.0)]


def test_a_judge_that_fails_in_a_later_evaluation_leaves_the_shards(case: Case):
    case.data()
    file, broken = case.folder / "mine.py", case.folder / "broken"
    file.write_text(
        "import os\ndef judge(completions, **_):\n"
        f"    if os.path.exists({str(broken)!r}):\n        raise ValueError('out of order')\n"
        "    return [1.0] * len(completions)\n"
    )
    options = ("--task.rewards", f"{file}:judge", "--evaluation.every", 3)
    ended = mugrpo("train", *case.words(*options), at="checkpoint", nth=1)
    assert ended.status == -signal.SIGKILL
    made = shards(case.run_dir)
    broken.touch()
    ended = case.command("train", *case.words(*options))
    stopped(ended, "could not be judged", "out of order", "the rollouts are kept")
    assert shards(case.run_dir) == made
    assert [p.name for p in (case.run_dir / "evaluations").iterdir()] == ["update-000000"]
    broken.unlink()
    assert case.command(*resume_words(ended)).status == 0
    assert {name: shards(case.run_dir)[name] for name in made} == made
    made = [line for line in read_metrics(case.run_dir) if line["kind"] == "evaluation"]
    assert [line["update"] for line in made] == [0, 3]


# ---- changed data ----


def test_changed_data_is_refused_and_the_same_problems_continue_from_any_directory(
    case: Case, monkeypatch: pytest.MonkeyPatch
):
    data = case.data()
    monkeypatch.chdir(case.folder)
    case.starts("--task.data", "p.jsonl")
    monkeypatch.chdir("/")
    rows = chains()
    for changed in (rows[:-1], rows[::-1], [*rows[:-1], {**rows[-1], "level": 2}]):
        data.write_bytes(lines(changed))
        refused(case.command("train", case.run_dir), "the problems changed", "--force")
    data.unlink()
    refused(case.command("train", case.run_dir), f"there is no data file {data}")
    data.write_bytes(GOOD.replace(b'": "', b'":"'))  # the same problems in other bytes
    assert case.command("train", case.run_dir).status == 0


# ---- no gradient ----


def test_equal_rewards_in_all_groups_give_a_warning_with_the_share(case: Case):
    case.data(lines([{**row, "answer": "eleven"} for row in chains()]))
    ended = case.train()
    assert ended.status == 0
    warning = (
        "warning: in 100% of the groups all rewards are equal; they give no gradient. Problems are "
        "too hard or too easy for the model, or the reward never varies"
    )
    assert ended.out.count(warning) == 1
    (refresh,) = (line for line in read_metrics(case.run_dir) if line["kind"] == "refresh")
    assert (refresh["zero_variance_share"], refresh["behavior_reward"]) == (1.0, 0.0)


# ---- the canary ----


@pytest.fixture
def shift(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Numbers that are added to the engine's logprobs. The list is empty at first."""
    by: list[float] = []
    advance = continuous._Sequences.advance

    def shifted(sequences: continuous._Sequences) -> Decoded:
        made = advance(sequences)
        more = np.float32(sum(by))
        return Decoded(
            [(i, dataclasses.replace(c, logprobs=c.logprobs + more)) for i, c in made.completions],
            made.slots,
        )

    monkeypatch.setattr(continuous._Sequences, "advance", shifted)
    return by


def test_an_ordinary_gap_is_not_reported(case: Case, shift: list[float]):
    case.data()
    assert "canary" not in case.starts().out


def test_a_gap_above_half_the_tolerance_is_reported_and_recorded(case: Case, shift: list[float]):
    case.data()
    shift.append(0.0006)
    ended = case.train()
    assert ended.status == 0 and ended.err == ""
    said = (
        r"canary: engine and trainer differ by 0\.0006\d* in logprob; nothing is wrong yet, but "
        r"above 0\.001 the run stops\n"
    )
    assert len(re.findall(said, ended.out)) == 1
    (refresh,) = (line for line in read_metrics(case.run_dir) if line["kind"] == "refresh")
    assert refresh["canary_gap"] == pytest.approx(0.0006, rel=0.02)


def test_the_threshold_of_the_warning_may_change(case: Case, shift: list[float]):
    case.data()
    shift.append(0.0005)
    assert "canary" not in case.starts("--engine.canary_warning", 0.6).out
    shutil.rmtree(case.run_dir / "stages")
    assert "canary: engine" in case.starts("--engine.canary_warning", 0.4).out


def test_a_gap_above_the_tolerance_stops_the_run_and_the_remedy_works(
    case: Case, shift: list[float]
):
    case.data()
    shift.append(0.5)
    stopped(
        case.train(),
        "canary: engine and trainer differ by 0.5 in logprob (tolerance 0.001)",
        "raise --engine.canary_tolerance (with --force)",
    )
    assert state(case.run_dir).rollouts == (0, 0)
    ended = case.train("--engine.canary_tolerance", 1, "--force")
    assert ended.status == 0


def test_a_gap_of_nan_stops_the_run(case: Case, shift: list[float]):
    case.data()
    shift.append(float("nan"))
    stopped(case.train(), "canary: engine and trainer differ by nan in logprob")
    assert state(case.run_dir).rollouts == (0, 0)


def test_without_a_canary_nothing_is_compared(case: Case, shift: list[float]):
    case.data()
    shift.append(0.5)
    assert "canary" not in case.starts("--engine.canary_responses", 0).out


# ---- models, data and directories that are not available ----


def test_a_missing_model_is_refused(case: Case):
    case.data()
    for path in (case.folder / "absent", "./absent", "a/b/c", "absent"):
        case.refused(
            "--model.path", path, parts=(f"there is no model directory {path}", "or a hub id")
        )
    case.starts()


def test_a_model_directory_without_a_config_is_refused(case: Case, model: Path):
    case.data()
    config = (model / "config.json").read_bytes()
    (model / "config.json").unlink()
    case.refused("--model.path", model, parts=(f"the model {model} cannot be loaded (",))
    (model / "config.json").write_bytes(config)
    case.starts("--model.path", model)


def test_a_model_directory_without_weights_is_refused(case: Case, model: Path):
    case.data()
    (model / "model.safetensors").rename(model / "weights")
    refused(case.train("--model.path", model), f"the model {model} cannot be loaded (")
    (model / "weights").rename(model / "model.safetensors")
    assert case.train("--model.path", model).status == 0


def test_a_config_of_an_unknown_model_is_refused(case: Case, model: Path):
    case.data()
    edited(model / "config.json", model_type="nonesuch")
    case.refused("--model.path", model, parts=(f"the model {model} cannot be loaded (",))


def answered(status: int) -> Any:
    """Return a response of the hub with this status."""
    return mock.Mock(status_code=status, headers={})


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (LocalEntryNotFoundError("no network"), ("couldn't connect", "if there is a network")),
        (
            RepositoryNotFoundError("404", response=answered(404)),
            ("is not a local folder and is not a valid model identifier",),
        ),
        (
            GatedRepoError("401", response=answered(401)),
            ("gated repo", "a gated one needs `hf auth login`"),
        ),
    ],
)
def test_a_hub_model_that_cannot_be_downloaded_is_refused(
    case: Case, monkeypatch: pytest.MonkeyPatch, error: Exception, parts: tuple[str, ...]
):
    def download(*_: Any, **__: Any) -> str:
        raise error

    case.data()
    monkeypatch.setattr(transformers.utils.hub, "hf_hub_download", download)
    parts = ("the model nobody/nothing-of-tests cannot be loaded (", *parts)
    case.refused("--model.path", "nobody/nothing-of-tests", parts=parts)
    case.starts()


@pytest.mark.parametrize("error", [ConnectionError("no network"), PermissionError("gated")])
def test_a_hub_data_set_that_cannot_be_downloaded_is_refused(
    case: Case, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    def load_dataset(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    parts = ("nobody/nothing is not a local file", str(error), "--task.data", "hf auth login")
    case.refused("--task.data", "nobody/nothing", parts=parts)


def test_a_run_directory_that_cannot_be_created_is_refused(case: Case):
    case.data()
    (case.folder / "run").write_text("a file")
    for run_dir in (case.folder / "run", case.folder / "run" / "a", Path("/proc/nowhere/run")):
        refused(case.train("--run-dir", run_dir), f"{run_dir} ", "name another --run-dir")
    assert case.loads == []
    assert (case.folder / "run").read_text() == "a file"


# ---- missing packages ----


@pytest.mark.parametrize(
    ("module", "options", "line"),
    [
        ("datasets", ("--task.data", "openai/gsm8k"), "pip install 'mugrpo[hub]'"),
        ("math_verify", ("--task.rewards", "math"), "pip install 'mugrpo[math]'"),
    ],
)
def test_a_missing_package_is_refused_with_the_pip_command(
    case: Case,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    options: tuple[str, str],
    line: str,
):
    case.data()
    monkeypatch.setitem(sys.modules, module, None)
    case.refused(*options, parts=(line,))
    case.starts()
