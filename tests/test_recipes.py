"""The recipes have the papers' schedules and options, and the smallest trains."""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from mugrpo.config.load import leaves, load_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.records import Response, Score, Status
from mugrpo.optimize import trainer
from mugrpo.optimize.experience import Responses, with_advantages
from mugrpo.tasks.dataset import Dataset
from tests.cases import table
from tests.rollouts.test_templates import tokenizer_of
from tests.runs import ROOT, read_metrics

RECIPES = ROOT / "configs" / "recipes"
_NAMES = ("mu_grpo", "off_policy_gsm8k", "off_policy_deepscaler")
_TEXTS = (ROOT / "docs" / "papers.md").read_text().split("\n## ")[1:]
SECTIONS = dict(zip(_NAMES, _TEXTS, strict=False))


def shape(config: RunConfig) -> tuple[int, int, int]:
    plan = config.schedule
    return plan.stages, plan.batches_per_stage, plan.passes_per_batch


@table("recipe", SECTIONS)
def test_a_recipe_has_the_options_of_its_section_in_docs_papers(recipe: str):
    found = dict(leaves(load_config(RECIPES / f"{recipe}.toml").model_dump(mode="json")))
    rows = re.findall(r"^\| `([a-z_.]+)` \| `([^`]+)` \|", SECTIONS[recipe], re.MULTILINE)
    assert len(rows) > 8
    assert {name: found[name] for name, _ in rows} == {
        name: tomllib.loads(f"value = {value}")["value"] for name, value in rows
    }


def test_mu_grpo_makes_4096_updates_in_four_stages():
    """As arXiv 2605.17570 has it; GRPO fresh makes as many."""
    recipe = RECIPES / "mu_grpo.toml"
    config = load_config(recipe)
    assert shape(config) == (4, 1024, 1) and config.schedule.total_updates == 4096
    assert config.objective.ratio_clip == (0.0, 5.0) and config.veto.scope == "suffix"
    fresh = ["--preset=grpo", "--schedule.stages=1024", "--schedule.batches_per_stage=4"]
    grpo = load_config(recipe, fresh)
    assert shape(grpo) == (1024, 4, 1) and grpo.schedule.total_updates == 4096
    assert grpo.objective.ratio_clip == (0.8, 1.2) and grpo.veto.name == "off"


def test_off_policy_grpo_has_the_papers_v_and_an_update_of_448_responses():
    """arXiv 2505.22257: v batches a stage, one pass over each."""
    for recipe, stages in (("off_policy_gsm8k", 27), ("off_policy_deepscaler", 144)):
        config = load_config(RECIPES / f"{recipe}.toml")
        assert shape(config) == (stages, 10, 1)
        assert config.schedule.rollouts_per_update == 448
        assert config.reference.name == "kl" and config.advantage.zero_variance_mask
        assert config.advantage.std == "population"


# Two updates of the smallest recipe.


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Path]:
    """A random model of Qwen2.5-0.5B's form, reduced, and problems in GSM8K's columns.

    The model has the form's architecture, heads that share keys and values 7 to 1, biases and tied
    embeddings, with 2 layers instead of 24, 14 heads of 4 numbers instead of 64, and a vocabulary
    of 256 bytes and three special tokens. Its chat template has the layout of Qwen's.
    """
    raw = json.loads((RECIPES / "forms" / "qwen2.5-0.5b" / "config.json").read_text())
    raw |= {"hidden_size": 56, "intermediate_size": 64, "num_hidden_layers": 2}
    tokenizer = tokenizer_of(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    raw |= {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    torch.manual_seed(3)
    folder = tmp_path / "model"
    AutoModelForCausalLM.from_config(Qwen2Config.from_dict(raw)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    data = tmp_path / "gsm8k.jsonl"
    rows = [
        {"question": f"{n} + 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in range(9)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder, data


@pytest.mark.long
def test_the_smallest_recipe_makes_two_updates(small, tmp_path, command, monkeypatch):
    """Of each update's two groups of two, a judge makes the first all wrong, the second half right.

    The mask removes the first. The second has mean 1/2 and population variance 1/4, so its
    advantages are -+(1/2) / sqrt(1/4 + 1e-4) = -+0.999800. Before the first step the policy is the
    reference, and the divergence is 0. The rate falls linearly from 5e-6 to 0.
    """
    model, data = small
    turn = count()

    def judged(_: Dataset, answers: Iterable[Response]) -> Iterator[Score]:
        for answer, number in zip(answers, turn, strict=False):
            assert answer.problem.reference.isdigit()  # what follows #### in the column
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
