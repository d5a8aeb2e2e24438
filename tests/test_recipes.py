"""The recipes have the papers' schedules and options, and the smallest trains."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

from mugrpo.arguments import parser
from mugrpo.config.load import load_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.records import Answer, Score, Status
from mugrpo.optimize import trainer
from mugrpo.optimize.experience import Responses, with_advantages
from mugrpo.tasks.dataset import Dataset
from tests.runs import ROOT, Command, read_metrics

pytest_plugins = ["tests.run_fixtures"]

RECIPES = ROOT / "configs" / "recipes"
PAGE = (ROOT / "docs" / "papers.md").read_text()
COMMANDS = re.findall(r"`mugrpo (train configs/recipes/[^`]+)`", PAGE)


def configs(recipe: str) -> list[RunConfig]:
    """Return the configs of the commands of docs/papers.md that train with a recipe."""
    found = []
    for command in COMMANDS:
        options, overrides = parser().parse_known_args(command.split())
        if options.target.stem == recipe:
            found.append(load_config(ROOT / options.target, overrides))
    return found


def shape(config: RunConfig) -> tuple[int, int, int]:
    plan = config.schedule
    return plan.stages, plan.batches_per_stage, plan.passes_per_batch


def test_mu_grpo_makes_4096_updates_in_four_stages_and_grpo_refreshes_after_every_four():
    """As arXiv 2605.17570 has it, on five models with three methods, GRPO in stages and scopes."""
    runs = configs("mu_grpo")
    assert {config.schedule.total_updates for config in runs} == {4096}
    relaxed, standard = (0.0, 5.0), (0.8, 1.2)
    found = Counter(
        (
            config.preset,
            shape(config),
            getattr(config.objective, "ratio_clip", None),
            getattr(config.veto, "scope", None),
        )
        for config in runs
    )
    long, short = (4, 1024, 1), (1024, 4, 1)
    assert found.pop(("mu-grpo", long, relaxed, "suffix")) == 5
    assert found.pop(("grpo", short, standard, None)) == found.pop(("m2po", long, None, None)) == 5
    assert found.pop(("grpo", long, standard, None)) == 5
    assert found == {
        ("mu-grpo", long, relaxed, None): 1,
        ("mu-grpo", long, relaxed, "trigger"): 1,
        ("mu-grpo", long, relaxed, "post_trigger"): 1,
        ("mu-grpo", long, relaxed, "response"): 1,
    }


def test_off_policy_grpo_has_the_papers_v_and_i_and_an_update_of_448_responses():
    """arXiv 2505.22257: v batches a stage, i passes over each, and equal rollouts."""
    gsm8k, deepscaler = configs("off_policy_gsm8k"), configs("off_policy_deepscaler")
    assert sorted(shape(config)[1:] for config in gsm8k) == [(1, 1), (1, 1), (1, 10), (10, 1)]
    assert sorted(shape(config)[1:] for config in deepscaler) == [(1, 1), (1, 1), (10, 1), (10, 1)]
    assert {c.schedule.stages * c.schedule.batches_per_stage for c in gsm8k} == {270}
    assert Counter(config.advantage.zero_variance_mask for config in gsm8k) == {True: 3, False: 1}
    for config in (*gsm8k, *deepscaler):
        assert config.schedule.rollouts_per_update == 448
        assert config.reference.name == "kl" and config.objective.ratio_clip == (0.8, 1.2)
        assert config.advantage.std == "population"


# Two updates of the smallest recipe.


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Path]:
    """A random model of Qwen2.5-0.5B's form, reduced, and problems in GSM8K's columns.

    The model has the form's architecture, heads that share keys and values 7 to 1, biases and tied
    embeddings, with 2 layers instead of 24, 14 heads of 4 numbers instead of 64, and a vocabulary
    of 256 bytes and two special tokens. Its chat template has the layout of Qwen's.
    """
    raw = json.loads((RECIPES / "forms" / "qwen2.5-0.5b" / "config.json").read_text())
    raw |= {"hidden_size": 56, "intermediate_size": 64, "num_hidden_layers": 2}
    form = Qwen2Config.from_dict(raw | {"vocab_size": 258, "eos_token_id": 257})
    torch.manual_seed(3)
    folder = tmp_path / "model"
    AutoModelForCausalLM.from_config(form).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    plain.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|im_end|>")
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer.save_pretrained(folder)
    data = tmp_path / "gsm8k.jsonl"
    rows = [
        {"question": f"{n} + 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in range(9)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder, data


@pytest.mark.long
def test_the_smallest_recipe_makes_two_updates(
    small: tuple[Path, Path], tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    """Of each update's two groups of two, a judge makes the first all wrong, the second half right.

    The mask removes the first. The second has mean 1/2 and population variance 1/4, so its
    advantages are -+(1/2) / sqrt(1/4 + 1e-4) = -+0.999800. Before the first step the policy is the
    reference, and the divergence is 0. The rate falls linearly from 5e-6 to 0.
    """
    model, data = small
    turn = count()

    def judged(_: Dataset, answers: Iterable[Answer]) -> Iterator[Score]:
        for answer, number in zip(answers, turn, strict=False):
            assert answer.problem.answer.isdigit()  # what follows #### in the column
            assert "1?\nThink step by step." in str(answer.problem.prompt)
            right = number % 4 == 0  # the first is a trial before the run
            yield Score(Status.RIGHT, 1.0) if right else Score(Status.WRONG, 0.0)

    seen: list[Responses] = []

    def noted(*arguments: Any) -> Responses:
        seen.append(with_advantages(*arguments))
        return seen[-1]

    monkeypatch.setattr(Dataset, "score", judged)
    monkeypatch.setattr(trainer, "with_advantages", noted)
    run_dir = tmp_path / "run"
    smaller = {
        "model.path": model,
        "model.precision": "fp32",
        "task.data": data,
        "task.subset": "none",
        "task.eval_split": "none",
        "schedule.stages": 1,
        "schedule.batches_per_stage": 2,
        "schedule.problems_per_update": 2,
        "schedule.group_size": 2,
        "rollouts.max_new_tokens": 8,
        "rewards.truncated": "scored",  # a random model ends few responses
        "evaluation.every": 0,
    }
    words = [f"--{name}={value}" for name, value in smaller.items()]
    ended = command("train", RECIPES / "off_policy_gsm8k.toml", "--run-dir", run_dir, *words)
    assert ended.status == 0, ended
    first, second = (line for line in read_metrics(run_dir) if line["kind"] == "update")
    assert (first["staleness"], second["staleness"]) == (0, 1)
    assert (first["lr"], second["lr"]) == (5e-6, 2.5e-6)
    for line in (first, second):
        assert (line["batch_reward"], line["zero_variance_share"]) == (0.25, 0.5)
    for responses in seen:
        assert responses.varied.tolist() == [False, False, True, True]
        expected = [0.0, 0.0, -0.99980006, 0.99980006]
        assert responses.advantages.tolist() == pytest.approx(expected, abs=1e-7)
    assert abs(first["kl_reference"]) < 1e-12 < second["kl_reference"]
