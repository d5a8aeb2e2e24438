"""Scripts that were written for TRL run after one line of them is changed."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from mugrpo.cli import main
from mugrpo.disk.errors import UsageError
from mugrpo.trl import GRPOConfig, GRPOTrainer
from mugrpo.trl.fields import FIELDS
from tests.runs import MODEL, read_metrics

SCRIPTS = Path(__file__).parent / "scripts"
TINY = {
    **{"per_device_train_batch_size": 4, "num_generations": 2, "max_completion_length": 3},
    **{"max_steps": 1, "bf16": False},
}
ROWS = [{"prompt": f"{a}+{b}=", "a": a} for a in range(1, 4) for b in range(1, 4)]


class Resets:
    def reset(self, **columns): ...


class Rewards(Resets):
    def get_reward(self):
        return 1.0


def length(completions, **columns):
    return [float(len(text)) for text in completions]


def ran(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, Any]:
    """Run a script in `folder` with one line changed. Return its variables."""
    source = (SCRIPTS / script).read_text()
    changed = source.replace("\nfrom trl import", "\nfrom mugrpo.trl import")
    lines = zip(source.splitlines(), changed.splitlines(), strict=True)
    assert sum(a != b for a, b in lines) == 1
    (folder / script).write_text(changed)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setattr(sys, "argv", [script, *words])
    return runpy.run_path(str(folder / script), {"MODEL": str(MODEL)}, "__main__")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def test_a_script_with_text_prompts_and_a_function_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    names = ran("plain.py", tmp_path, monkeypatch)
    assert "rewards run in this process, without limits: <script " in capsys.readouterr().out
    # the trial before the first rollout, then each generation of 4 x 2 rollouts in one call
    assert names["CALLS"] == [1, 8, 8, 8]
    assert names["result"].global_step == names["trainer"].state.global_step == 3
    history = names["trainer"].state.log_history
    assert [line["step"] for line in history] == [1, 2, 3]
    # TRL's linear rate: lr x (updates - step) / updates
    assert [line["learning_rate"] for line in history] == pytest.approx([1e-4, 2e-4 / 3, 1e-4 / 3])
    home = tmp_path / "plain-GRPO"
    assert sorted(p.name for p in (home / "run" / "stages").iterdir()) == ["000", "001", "002"]
    assert AutoTokenizer.from_pretrained(home).eos_token == "<eos>"
    trained, initial = weights(home), weights(MODEL)
    assert any(not torch.equal(trained[name], initial[name]) for name in initial)

    ours = names["trainer"].model
    assert names["trainer"].model is ours  # loaded once
    assert all(torch.equal(ours.state_dict()[name], trained[name]) for name in trained)
    assert names["trainer"].processing_class.eos_token == "<eos>"

    again = ran("plain.py", tmp_path, monkeypatch)  # the finished run is found
    assert again["result"].global_step == 3 and again["CALLS"] == []
    assert main(["evaluate", str(home / "run"), "--evaluation.every", "1"]) == 2


def test_a_run_of_a_scripts_functions_is_not_scored_without_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    args = GRPOConfig(str(tmp_path / "out"), **{**TINY, "max_steps": 2})
    trainer = GRPOTrainer(str(MODEL), lambda completions, **_: [1.0] * len(completions), args, ROWS)
    trainer.train()
    assert main(["score", str(tmp_path / "out" / "run"), "--stage", "0", "--again"]) == 2
    assert "exists only in the script that began this run" in capsys.readouterr().err


def test_a_script_that_parses_arguments_and_trains_an_adapter_on_conversations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    words = (
        f"--model_name_or_path {MODEL} --output_dir adapter --loss_type grpo --epsilon 3e-4 "
        "--epsilon_high 4e-4 --importance_sampling_level sequence --num_generations 2 "
        "--per_device_train_batch_size 2 --gradient_accumulation_steps 2 --steps_per_generation 4 "
        "--max_completion_length 4 --max_steps 4 --eval_strategy steps --eval_steps 2 --bf16 False "
        "--reward_weights 1.0 2.0 --learning_rate 1e-3 --seed 3"
    )
    names = ran("parsed.py", tmp_path, monkeypatch, *words.split())
    home = tmp_path / "adapter"
    saved = load_file(home / "adapter_model.safetensors")
    trained = names["trainer"].model.get_base_model().state_dict()
    for name, tensor in saved.items():
        ours = name.removeprefix("base_model.model.").replace(".weight", ".default.weight")
        assert torch.equal(trained[ours], tensor)
    assert names["trainer"].processing_class is names["tokenizer"]
    config = json.loads((home / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (2, 4)
    assert sorted(config["target_modules"]) == ["q_proj", "v_proj"]
    stored = json.loads((home / "run" / "config.json").read_text())["config"]
    assert [r["weight"] for r in stored["task"]["rewards"]] == [1.0, 2.0]
    assert stored["objective"]["level"] == "sequence" and stored["seed"] == 3
    # a generation is 8 rollouts of 4 prompts, and two updates of 4
    assert stored["schedule"]["batches_per_stage"] == 2 == stored["schedule"]["stages"]
    assert stored["prompt"]["form"] == "chat"
    evaluations = [m for m in read_metrics(home / "run") if m["kind"] == "evaluation"]
    assert [line["update"] for line in evaluations] == [0, 2, 4]
    # accuracy_reward is 0 or 1, and the other one 0.5 with weight 2
    assert all(line["reward"] >= 1.0 for line in evaluations)


def test_a_script_with_a_loaded_model_a_file_of_rewards_and_a_callback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.warns(UserWarning, match=r"mugrpo\.trl") as warned:
        names = ran("loaded.py", tmp_path, monkeypatch)
    texts = [str(one.message) for one in warned if "mugrpo.trl" in str(one.message)]
    assert len(texts) == 1 and "use_transformers_continuous_batching" in texts[0]
    # 8 prompts, 4 to a generation: 2 generations x 2 epochs x (2 batches x 2 passes) = 16 updates
    lines = read_metrics(tmp_path / "loaded-GRPO" / "run")
    assert [line["staleness"] for line in lines if line["kind"] == "update"] == [0, 1, 2, 3] * 4
    steps = [event[1:] for event in names["EVENTS"] if event[0] == "step"]
    assert steps == [(step, step / 8) for step in range(1, 17)]
    assert names["trainer"].state.num_train_epochs == 2
    logs = [event[1:] for event in names["EVENTS"] if event[0] == "log"]
    assert logs == [(step, True, True) for step in range(2, 17, 2)]
    assert [e[1] for e in names["EVENTS"] if e[0] == "save"] == [4, 8, 12, 16]
    home = tmp_path / "loaded-GRPO"
    stored = json.loads((home / "run" / "config.json").read_text())["config"]
    assert stored["task"]["rewards"][0]["function"] == f"{SCRIPTS}/letter_rewards.py:ones"
    assert stored["model"]["path"] == str(home / "data" / "model")
    assert stored["advantage"]["std"] == "none" and stored["reduction"] == "constant"
    assert stored["reference"]["coefficient"] == 0.01
    assert main(["train", str(home / "run")]) == 0  # workers can judge, so the script is not needed


def test_a_changed_function_is_noticed(tmp_path: Path):
    def run(function: Any) -> None:
        args = GRPOConfig(str(tmp_path / "out"), **TINY)
        GRPOTrainer(str(MODEL), function, args, ROWS).train()

    run(lambda completions, **_: [0.0] * len(completions))
    with pytest.raises(UsageError, match=r"was started differently: task\.rewards"):
        run(lambda completions, **_: [1.0] * len(completions))


def test_a_callback_can_end_the_run_and_training_goes_on_from_there(tmp_path: Path):
    class Ender(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 2

        def on_step_begin(self, args, state, control, **kwargs):
            raise AssertionError

    args = GRPOConfig(str(tmp_path / "out"), **{**TINY, "max_steps": 4})
    with pytest.warns(UserWarning, match=r"Ender\.on_step_begin is never called"):
        trainer = GRPOTrainer(str(MODEL), length, args, ROWS, callbacks=[Ender()])
    assert trainer.train().global_step == 2
    assert GRPOTrainer(str(MODEL), length, args, ROWS).train().global_step == 4
    whole = GRPOConfig(str(tmp_path / "whole"), **{**TINY, "max_steps": 4})
    GRPOTrainer(str(MODEL), length, whole, ROWS).train()
    at_once = weights(tmp_path / "whole")
    for name, tensor in weights(tmp_path / "out").items():
        assert torch.equal(tensor, at_once[name])  # to the same bits


def test_rewards_that_fail_or_break_their_contract_stop_the_run(tmp_path: Path):
    def broken(completions, **_):
        return ["right"] * len(completions)

    def failing(completions, **_):
        return [1 / (len(text) - len(text)) for text in completions]

    for function, words in ((broken, "as reward 0 of 1"), (failing, "ZeroDivisionError")):
        args = GRPOConfig(str(tmp_path / function.__name__), **TINY)
        with pytest.raises(Exception, match=words):
            GRPOTrainer(str(MODEL), function, args, ROWS).train()


def test_a_script_under_accelerate_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="start the script with plain python"):
        GRPOTrainer(str(MODEL), length, GRPOConfig(**TINY), ROWS)


def test_before_training_the_model_and_the_tokenizer_are_those_that_were_given(tmp_path: Path):
    args = GRPOConfig(str(tmp_path / "out"), **TINY)
    trainer = GRPOTrainer(str(MODEL), length, args, ROWS)
    with pytest.raises(UsageError, match=rf"after train\(\); before it, load {MODEL} with"):
        _ = trainer.model
    assert trainer.processing_class.eos_token == "<eos>"
    with pytest.raises(UsageError, match=r"evaluate\(\) needs an eval_dataset; give GRPOTrainer"):
        trainer.evaluate()
    model, tokenizer = (c.from_pretrained(MODEL) for c in (AutoModelForCausalLM, AutoTokenizer))
    given = GRPOTrainer(model, length, args, ROWS, ROWS[:1], processing_class=tokenizer)
    assert given.model is model and given.processing_class is tokenizer
    with pytest.raises(UsageError, match=r"evaluate\(\) needs the run in .*out; call train\(\)"):
        given.evaluate()


def test_empty_tables_ask_for_nothing(tmp_path: Path, recwarn: pytest.WarningsRecorder):
    """Nothing is refused, and nothing is warned of."""
    mappings = [n for n, one in FIELDS.items() if "dict" in one.type or n.endswith("_kwargs")]
    assert {"generation_kwargs", "model_init_kwargs", "chat_template_kwargs"} <= {*mappings}
    args = GRPOConfig(str(tmp_path), **TINY, **{name: {} for name in mappings})
    GRPOTrainer(str(MODEL), length, args, ROWS, tools=[], quantization_config={})
    assert [one for one in recwarn if "mugrpo.trl" in str(one.message)] == []


def test_own_options_and_an_evaluation_by_hand(tmp_path: Path):
    own = {"task.workers.timeout": 7, "optimizer.eps": 1e-5}
    args = GRPOConfig(str(tmp_path / "out"), **TINY, logging_strategy="no", options=own)
    unseen = [{"prompt": f"{a}-1="} for a in range(5, 9)]
    trainer = GRPOTrainer(str(MODEL), length, args, ROWS, unseen)
    with pytest.raises(UsageError, match="has no checkpoint to save; call train"):
        trainer.save_model()
    trainer.train()
    stored = json.loads((tmp_path / "out" / "run" / "config.json").read_text())["config"]
    workers = stored["task"]["workers"]  # a generation is 4 rollouts
    assert (workers["timeout"], workers["batch_size"]) == (7, 4)
    assert stored["optimizer"]["eps"] == 1e-5
    # every response has at most 3 characters, and their number is the reward
    found = trainer.evaluate()
    assert found["eval_problems"] == 4 and 0 < found["eval_reward"] <= 3
    assert trainer.state.log_history == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tools": [3]}, "tools: 3 cannot be called"),
        ({"environment_factory": {"game": print}}, "environment_factory is a dict of several"),
        ({"tools": [length]}, "environment.tools needs prompt.form = 'chat'"),
        ({"reward_funcs": None, "environment_factory": Resets}, "reward_funcs: None is not a"),
        ({"optimizers": (object(), None)}, "takes no optimizers"),
        ({"reward_funcs": "a/reward-model"}, "call a reward model in a function"),
        ({"reward_funcs": []}, "reward_funcs is empty"),
        ({"args": object()}, "args is a object; import GRPOConfig from mugrpo.trl, too"),
        ({"model": None}, "model is None; give a path, a hub id or a loaded model"),
        ({"train_dataset": []}, "the dataset has no rows"),
        ({"train_dataset": [{"question": "1+1="}]}, "row 0 of the dataset has no 'prompt'"),
        ({"train_dataset": [{"prompt": "1=", "image": object()}] * 4}, "column 'image' of row 0"),
        ({"eval_dataset": {"a": ROWS}}, "one dataset, not a dict of several"),
        ({"peft_config": object()}, "peft_config is a object; only LoraConfig"),
    ],
)
def test_arguments_without_a_meaning_are_refused(
    tmp_path: Path, arguments: dict[str, Any], words: str
):
    args = GRPOConfig(str(tmp_path / "out"), **TINY)
    given = {"model": str(MODEL), "reward_funcs": length, "args": args, "train_dataset": ROWS}
    with pytest.raises(UsageError, match=words):
        GRPOTrainer(**{**given, **arguments})


@pytest.mark.parametrize(("arguments", "turns"), [({}, 4), ({"max_tool_calling_iterations": 2}, 3)])
def test_an_environment_and_its_reward_are_options_of_the_run(tmp_path: Path, arguments, turns):
    args = GRPOConfig(str(tmp_path / "out"), reward_weights=[0.5], **arguments, **TINY)
    trainer = GRPOTrainer(str(MODEL), length, args, ROWS, environment_factory=Rewards)
    assert trainer._raw["environment"] == {
        "name": "<script>:Rewards",  # a module in a package may be found only by this process
        "tools": [],
        "max_turns": turns,
    }
    function, own = trainer._raw["task"]["rewards"]
    assert (function["weight"], own) == (0.5, {"name": "environment"})
    assert trainer._held == {function["function"]: length, "<script>:Rewards": Rewards}
    alone = GRPOConfig(str(tmp_path / "out"), **TINY)
    made = GRPOTrainer(
        str(MODEL), args=alone, train_dataset=ROWS, environment_factory=lambda: Rewards()
    )
    assert made._raw["task"]["rewards"] == [{"name": "environment"}]
    assert list(made._held) == [made._raw["environment"]["name"]] == ["<script>:environment"]


def test_peft_options_that_are_not_known_are_refused(tmp_path: Path):
    peft = pytest.importorskip("peft")
    args = GRPOConfig(str(tmp_path / "out"), **TINY)
    for options, words in (
        ({"lora_alpha": 8.5}, "lora_alpha = 8.5 must be an integer"),
        ({"task_type": "SEQ_CLS"}, "task_type = 'SEQ_CLS'; use 'CAUSAL_LM'"),
        ({"use_dora": True}, "use_dora = True is not known here"),
        ({"lora_dropout": 0.1}, "dropout would change it in between"),
    ):
        config = peft.LoraConfig(r=2, **options)
        with pytest.raises(UsageError, match=words):
            GRPOTrainer(str(MODEL), length, args, ROWS, peft_config=config)
