"""docs/papers.md: each command gives what its row says, and that is what the papers say."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

from mugrpo.arguments import parser
from mugrpo.config.load import leaves, load_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.records import Answer, Score, Status
from mugrpo.optimize import trainer
from mugrpo.optimize.experience import Responses, with_advantages
from mugrpo.tasks.dataset import Dataset
from tests.runs import ROOT, Command, read_metrics

pytest_plugins = ["tests.run_fixtures"]

PAGE = ROOT / "docs" / "papers.md"
RECIPES = ROOT / "configs" / "recipes"
SUITES = {"aime24", "aime25", "amc23", "amc24", "math500", "gsm8k"}
Table = list[list[str]]  # rows of cells


class Experiment(NamedTuple):
    """A row of the page, with the options that its section has in common."""

    model: str
    method: str
    schedule: str
    command: list[str]  # its words
    suites: str
    paper: str
    ours: str
    common: dict[str, Any]


def tables(section: str) -> list[Table]:
    """Return the tables of a section, without their header lines."""
    blocks = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    return [
        [[cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines()[2:]]
        for block in blocks
    ]


def experiments() -> list[Experiment]:
    found = []
    for section in PAGE.read_text().split("\n## ")[1:]:
        common: dict[str, Any] = {}
        for table in tables(section):
            if len(table[0]) == 3:
                for option, value, _ in table:
                    common[option.strip("`")] = tomllib.loads(f"x = {value.strip('`')}")["x"]
            elif len(table[0]) == 7:
                for model, method, schedule, command, *rest in table:
                    words = command.strip("`").split()
                    found.append(Experiment(model, method, schedule, words, *rest, common))
    return found


EXPERIMENTS = experiments()
each = pytest.mark.parametrize("row", EXPERIMENTS, ids=[row.command[-1] for row in EXPERIMENTS])


def config_of(row: Experiment) -> RunConfig:
    """Return the config that a row's command trains with."""
    options, overrides = parser().parse_known_args(row.command[1:])
    assert row.command[0] == "mugrpo" and options.command == "train"
    return load_config(ROOT / options.target, overrides)


def shape(config: RunConfig) -> tuple[int, int, int]:
    plan = config.schedule
    return plan.stages, plan.batches_per_stage, plan.passes_per_batch


@each
def test_a_command_has_the_options_of_its_section_and_the_schedule_of_its_row(row: Experiment):
    config = config_of(row)
    options = dict(leaves(config.model_dump(mode="json")))
    assert {name: options[name] for name in row.common} == row.common and len(row.common) >= 8
    stated = re.match(r"(\d+) x (\d+) x (\d+)", row.schedule)
    assert stated and shape(config) == tuple(map(int, stated.groups()))
    assert config.model.path.endswith(row.model.split(" [")[0])
    assert row.ours == "" and row.paper  # we ran none


def test_every_row_trains_into_a_folder_of_its_own_and_names_suites():
    folders = [row.command[row.command.index("--run-dir") + 1] for row in EXPERIMENTS]
    assert len(set(folders)) == len(folders) == 15 + 6 + 4 + 2 + 2
    measured = [row.suites for row in EXPERIMENTS if not row.suites.startswith("none")]
    assert len(measured) == len(EXPERIMENTS) - 2
    for suites in measured:
        assert set(re.findall(r"[a-z]+\d+k?", suites)) <= SUITES


# As published: arXiv 2605.17570's captions, and arXiv 2505.22257.
MU_GRPO = {"mu-grpo": (4, 1024, 1), "grpo": (1024, 4, 1), "m2po": (4, 1024, 1)}
RELAXED, STANDARD = (0.0, 5.0), (0.8, 1.2)


def test_mu_grpo_makes_4096_updates_in_four_stages_and_grpo_refreshes_after_every_four():
    rows = [row for row in EXPERIMENTS if row.method in MU_GRPO]
    assert len(rows) == 15 and len({row.model for row in rows}) == 5
    for row in rows:
        config = config_of(row)
        assert config.preset == row.method and config.schedule.total_updates == 4096
        assert shape(config) == MU_GRPO[row.method] and config.reference.name == "off"
        clip = {"mu-grpo": RELAXED, "grpo": STANDARD, "m2po": None}[row.method]
        assert getattr(config.objective, "ratio_clip", None) == clip
        assert config.veto.name == ("negative_advantage" if row.method == "mu-grpo" else "off")


def test_each_ablation_changes_the_part_that_it_names():
    scopes = {
        "relaxed clip, no veto": (RELAXED, None),
        "standard clip, no veto": (STANDARD, None),
        "veto of the trigger only": (RELAXED, "trigger"),
        "veto of all after the trigger": (RELAXED, "post_trigger"),
        "veto from the trigger on": (RELAXED, "from_trigger"),
        "veto of the response": (RELAXED, "response"),
    }
    rows = {row.method: config_of(row) for row in EXPERIMENTS if row.method in scopes}
    found = {
        name: (config.objective.ratio_clip, getattr(config.veto, "scope", None))
        for name, config in rows.items()
    }
    assert found == scopes
    assert {shape(config) for config in rows.values()} == {(4, 1024, 1)}


def test_off_policy_grpo_has_the_papers_v_and_i_and_an_update_of_448_responses():
    gsm8k = {row.command[-1].rpartition("gsm8k-")[2]: config_of(row) for row in EXPERIMENTS[-8:-4]}
    v_and_i = {"on-policy": (1, 1), "masked": (1, 1), "v10": (10, 1), "i10": (1, 10)}
    assert {name: shape(config)[1:] for name, config in gsm8k.items()} == v_and_i
    batches = {c.schedule.stages * c.schedule.batches_per_stage for c in gsm8k.values()}
    assert batches == {270}  # equal rollouts; i = 10 has ten times the updates
    masks = {name: config.advantage.zero_variance_mask for name, config in gsm8k.items()}
    assert masks == {"on-policy": False, "masked": True, "v10": True, "i10": True}
    deepscaler = [config_of(row) for row in EXPERIMENTS[-4:]]
    assert [shape(config)[1:] for config in deepscaler] == [(1, 1), (10, 1)] * 2
    for config in (*gsm8k.values(), *deepscaler):
        assert config.schedule.rollouts_per_update == 448
        assert config.reference.name == "kl" and config.objective.ratio_clip == STANDARD
        assert (config.advantage.std, config.advantage.eps_inside) == ("population", True)


def test_every_model_has_a_form_and_every_form_a_model():
    [models_table] = tables(PAGE.read_text().partition("\n## Models")[2])
    forms = {model.strip("`"): form.strip("`") for model, form in models_table}
    assert forms.keys() == {config_of(row).model.path for row in EXPERIMENTS}
    assert sorted(forms.values()) == sorted(path.name for path in (RECIPES / "forms").iterdir())


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
            assert answer.problem.answer.isdigit()  # what answer_pattern takes from the column
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
