"""`mugrpo from-trl`: what a script or a YAML of TRL becomes, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mugrpo.cli import main
from mugrpo.config.load import load_config
from mugrpo.config.run import RunConfig

YAML = """
model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct
dataset_name: trl-lib/DeepMath-103K
dataset_train_split: train
reward_funcs: [accuracy_reward, get_soft_overlong_punishment, mine.rewards.short]
reward_weights: [1.0, 2.0, 0.5]
num_generations: 4
per_device_train_batch_size: 4
gradient_accumulation_steps: 4
max_steps: 100
learning_rate: 1e-5
top_p: 0.9
gradient_checkpointing: false
loss_type: sapo
attn_implementation: sdpa
use_peft: true
lora_r: 32
lora_target_modules: [q_proj, v_proj]
num_generation: 8
"""
SCRIPT = """
raise SystemExit("a script is never run")

import os
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward as accuracy

STEPS = 12
MODEL = "Qwen/Qwen3-0.6B"
dataset = load_dataset("openai/gsm8k", "main", split="train")

def polite(completions, **kwargs):
    return [float("please" in completion[0]["content"]) for completion in completions]

def conversation(row):
    return {"prompt": [{"role": "user", "content": row["question"]}]}

training_args = GRPOConfig("out", max_steps=STEPS, num_generations=4, epsilon=0.1,
                           run_name=os.environ["NAME"], beta=0.04)
training_args.temperature = 0.7
model = AutoModelForCausalLM.from_pretrained(MODEL)
trainer = GRPOTrainer(
    model=model,
    args=training_args,
    reward_funcs=[accuracy, polite, lambda completions, **_: [0.0] * len(completions)],
    train_dataset=dataset,
    eval_dataset=load_dataset("openai/gsm8k", "main", split="test"),
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", lora_dropout=0.05),
    callbacks=[print],
)
trainer.train()
"""


def printed(name: str, text: str, tmp_path: Path, capsys: Any) -> tuple[str, RunConfig]:
    """Return what the command prints, and the config that this is."""
    (tmp_path / name).write_text(text)
    assert main(["from-trl", str(tmp_path / name)]) == 0
    out = capsys.readouterr().out
    (tmp_path / "printed.toml").write_text(out)
    return out, load_config(tmp_path / "printed.toml")


def test_a_yaml_of_trls_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out, config = printed("grpo.yaml", YAML, tmp_path, capsys)
    assert config.model.path == "Qwen/Qwen2.5-0.5B-Instruct" and config.model.precision == "bf16"
    assert config.optimizer.lr == 1e-5
    # 4 x 4 = 16 rollouts of 4 prompts, one update, 100 times
    shape = config.schedule
    assert (shape.stages, shape.batches_per_stage) == (100, 1)
    assert (shape.problems_per_update, shape.group_size) == (4, 4)
    assert (config.lora.rank, config.lora.targets) == (32, ("q_proj", "v_proj"))
    task: Any = config.task
    assert (task.data, task.split) == ("trl-lib/DeepMath-103K", "train")
    rewards = [(reward.function, reward.weight) for reward in task.rewards]
    assert rewards == [("trl.rewards:accuracy_reward", 1.0), ("mine.rewards:short", 0.5)]
    for comment in (
        "# not carried over: the reward get_soft_overlong_punishment\n",
        "# not carried over: top_p = 0.9: a logprob is log_softmax(logits / temperature)",
        "# not carried over: loss_type = 'sapo': choose grpo, dapo",
        "# not carried over: attn_implementation = 'sdpa'\n",
        "# not carried over: num_generation = 8; did you mean num_generations?\n",
        "# no effect: gradient_checkpointing = False: micro-batches bound the memory",
        '# prompt.form: set "chat" if the prompts are conversations\n',
    ):
        assert comment in out


def test_a_script_is_read_and_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out, config = printed("train.py", SCRIPT, tmp_path, capsys)
    assert config.model.path == "Qwen/Qwen3-0.6B" and config.prompt.form == "chat"
    assert config.objective.model_dump()["ratio_clip"] == (0.9, 1.1)
    assert (
        config.rollouts.temperature == 0.7 and config.reference.model_dump()["coefficient"] == 0.04
    )
    # 8 rollouts, 2 groups of 4 to an update
    assert (config.schedule.stages, config.schedule.problems_per_update) == (12, 2)
    assert (config.lora.rank, config.lora.alpha, config.lora.targets) == (16, 32, "all-linear")
    task: Any = config.task
    assert (task.data, task.subset, task.split) == ("openai/gsm8k", "main", "train")
    functions = [reward.function for reward in task.rewards]
    assert functions[0] == "trl.rewards:accuracy_reward"
    assert functions[1].endswith("rewards.py:polite") and len(functions) == 2
    for comment in (
        "# not carried over: GRPOConfig(run_name=os.environ['NAME'])\n",
        "# not carried over: LoraConfig(lora_dropout=0.05)\n",
        "# not carried over: callbacks = [print]\n",
        "# not carried over: the reward lambda completions, **_: [0.0] * len(completions)\n",
        "# task.rewards: move polite from train.py to rewards.py; importing the script would run",
        "# not carried over: eval_dataset=load_dataset('openai/gsm8k', 'main', split='test')",
    ):
        assert comment in out


def test_what_peft_and_trl_would_choose_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = YAML.replace("[q_proj, v_proj]", ".*_proj").replace("[1.0, 2.0, 0.5]", "[1.0]")
    out, config = printed("grpo.yaml", text + "load_in_4bit: true\n", tmp_path, capsys)
    assert (config.lora.targets, config.lora.quantization) == ("all-linear", "nf4")
    task: Any = config.task
    assert [reward.weight for reward in task.rewards] == [1.0, 1.0]
    for comment in (
        "# not carried over: target_modules = '.*_proj': name layers in a list\n",
        "# not carried over: lora_dropout = 0.05: it must be 0 here\n",  # TRL's default
        "# not carried over: reward_weights = [1.0]: the rewards that could be read are not as",
    ):
        assert comment in out
    out, config = printed("a.yaml", "use_peft: true\nload_in_8bit: true", tmp_path, capsys)
    assert (config.lora.rank, config.lora.quantization) == (16, "none")
    assert "# lora.targets: all linear layers; peft would choose some by the model\n" in out
    assert "# not carried over: load_in_8bit = True\n" in out


def test_epochs_are_left_to_the_reader(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = YAML.replace("max_steps: 100", "num_train_epochs: 2")
    out, _ = printed("grpo.yaml", text, tmp_path, capsys)
    expected = "schedule.stages: set it to num_train_epochs = 2 x (prompts / 4, rounded down)"
    assert f"# {expected}\n" in out


def test_a_script_whose_arguments_are_parsed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = (Path(__file__).parent / "scripts" / "parsed.py").read_text()
    out, config = printed("parsed.py", text, tmp_path, capsys)
    assert "# the fields of GRPOConfig are not in the script; add yours\n" in out
    assert "# not carried over: model=script_args.model_name_or_path\n" in out
    assert config.lora.rank == 2 and config.prompt.form == "chat"


def test_values_of_other_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = SCRIPT.replace("beta=0.04", 'learning_rate="2e-6", beta=None, epsilon_high=None')
    text = text.replace('"openai/gsm8k", "main"', '"json", data_files={"train": "a.jsonl"}')
    out, config = printed("train.py", text.replace('"all-linear"', '{"v", "q"}'), tmp_path, capsys)
    assert config.optimizer.lr == 2e-6 and config.lora.targets == ("q", "v")
    assert "# not carried over: beta = None\n" in out and "epsilon_high" not in out
    assert "# not carried over: load_dataset(data={'train': 'a.jsonl'})\n" in out


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.py", "print(1)", "makes no GRPOTrainer"),
        ("a.py", "def", "cannot be read (invalid syntax"),
        ("a.yaml", "- 1", "not a table of options"),
        ("a.yaml", "a: [", "cannot be read"),
        ("a.yaml", "max_steps: '100'", "cannot be read"),
        ("a.yaml", "num_generations: 3", "no multiple of num_generations = 3"),
    ],
)
def test_what_cannot_be_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, words: str
):
    (tmp_path / name).write_text(text)
    assert main(["from-trl", str(tmp_path / name)]) == 2
    assert words in capsys.readouterr().err
