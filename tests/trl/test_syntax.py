"""What is read in scripts of the shapes that users of TRL write, and what is said of the rest."""

from __future__ import annotations

import ast

import pytest

from mugrpo.trl.syntax import Found, of_script

REST = "train_dataset=load_dataset('d'), reward_funcs=[short]"


def read(text: str) -> Found:
    return of_script(ast.parse(f"def short(completions, **_): ...\n{text}"), "train.py")


def skipped(text: str) -> set[str]:
    comments = read(text).comments
    return {line.removeprefix("not carried over: ") for line in comments if "carried" in line}


def test_arguments_that_a_parser_makes_and_fields_that_are_set_afterwards():
    text = """
@dataclass
class ScriptArguments:
    model_name: str = "not/this"
    max_steps: int = 7

if __name__ == "__main__":
    parser = TrlParser((ScriptArguments, GRPOConfig, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config()
    training_args.max_steps = 5
    training_args.output_dir = script_args.out
    if script_args.fast:
        training_args.num_iterations = 3
    trainer = GRPOTrainer(model=model_args.model_name_or_path, args=training_args,
        reward_funcs=get_rewards(script_args), train_dataset=dataset[script_args.split],
        peft_config=get_peft_config(model_args))
    trainer.add_callback(Late())
"""
    found = read(text)
    assert found.fields == {"max_steps": 5} and found.model is None
    assert found.comments == [
        "the fields of GRPOConfig are not in the script; add yours",
        "not carried over: GRPOConfig(output_dir=script_args.out)",
        "not carried over: training_args.num_iterations = 3, which is set in some cases",
        "not carried over: model=model_args.model_name_or_path",
        "not carried over: peft_config=get_peft_config(model_args)",
        "not carried over: train_dataset=dataset[script_args.split]",
        "not carried over: the reward get_rewards(script_args)",
        "not carried over: trainer.add_callback(Late())",
    ]


def test_argparse_and_f_strings():
    text = f"""
args = argparse.ArgumentParser().parse_args()
SIZE: str = "0.6B"
MODEL = f"Qwen/Qwen3-{{SIZE}}"
name = MODEL
config = GRPOConfig(f"out/{{args.name}}", learning_rate=args.lr, run_name=f"{{SIZE}}-run",
                    reward_weights=[ONE, 0.5], max_steps=2 * 5, seed=-1)
ONE = 1.0
GRPOTrainer(name, args=config, {REST})
"""
    found = read(text)
    assert found.model == "Qwen/Qwen3-0.6B"
    assert found.fields == {"run_name": "0.6B-run", "reward_weights": [1.0, 0.5], "seed": -1}
    assert skipped(text) == {
        "GRPOConfig(output_dir=f'out/{args.name}')",
        "GRPOConfig(learning_rate=args.lr)",
        "GRPOConfig(max_steps=2 * 5)",
    }


@pytest.mark.parametrize(
    "change",
    [
        "if debug:\n    steps = 1",
        "steps *= 2",
        "for steps in (1, 2):\n    pass",
        "steps, other = 3, 4",
        "with open('f') as steps:\n    pass",
        "if (steps := 3):\n    pass",
        "from elsewhere import steps",
        "del steps",
    ],
)
def test_a_name_that_is_bound_twice_has_no_value(change: str):
    text = f"steps = 5\n{change}\nGRPOTrainer('m', args=GRPOConfig(max_steps=steps), {REST})"
    assert read(text).fields == {} and "GRPOConfig(max_steps=steps)" in skipped(text)


def test_what_is_changed_in_place_has_no_value():
    text = """
more = {"max_steps": 5}
more["beta"] = 0.1
rewards = [short]
rewards.append(long)
names = ["q_proj"]
names.extend(others)
GRPOTrainer("m", rewards, GRPOConfig(**more), load_dataset("d"),
            peft_config=LoraConfig(target_modules=names))
"""
    found = read(text)
    assert found.fields == {} and found.lora == {"rank": 8, "alpha": 8}  # peft's defaults
    assert skipped(text) == {
        "GRPOConfig(**more)",
        "LoraConfig(target_modules=names)",
        "the reward rewards",
    }


def test_star_arguments():
    text = """
common = dict(beta=0.04, epsilon=EPS)
EPS = 0.3
data = {"train_dataset": load_dataset("d"), "model": "m"}
config = GRPOConfig("out", **common, **{"max_steps": 3}, **load(), )
GRPOTrainer(*things, args=config, reward_funcs=short, **data)
"""
    found = read(text)
    assert found.fields == {"output_dir": "out", "beta": 0.04, "epsilon": 0.3, "max_steps": 3}
    assert (found.model, found.task) == ("m", {"data": "d"})
    assert skipped(text) == {"GRPOConfig(**load())", "GRPOTrainer(*things)"}


def test_functions_in_other_files():
    text = """
import mine.rewards
import theirs as other
from trl.rewards import think_format_reward as think
from .near import close
GRPOTrainer("m", [mine.rewards.short, other.long, think, close, self.reward, partial(f, 2)],
            GRPOConfig(), load_dataset("d"))
"""
    found = read(text)
    assert found.rewards == [
        "mine.rewards:short",
        "theirs:long",
        "trl.rewards:think_format_reward",
        *(None, None, None),
    ]
    assert skipped(text) == {
        "the reward close",
        "the reward self.reward",
        "the reward partial(f, 2)",
    }


def test_all_arguments_may_be_positional_and_nested():
    text = """
from trl import GRPOConfig as Config, GRPOTrainer as Trainer
def main():
    Trainer(
        AutoModelForCausalLM.from_pretrained("m", torch_dtype=torch.bfloat16),
        lambda completions, **_: [0.0] * len(completions),
        Config("out", max_steps=4),
        load_dataset("d", "main", split="train", trust_remote_code=True),
        None,
        tokenizer,
    ).train()
main()
"""
    found = read(text)
    assert found.model == "m" and found.fields == {"output_dir": "out", "max_steps": 4}
    assert found.task == {"data": "d", "subset": "main", "split": "train"}
    assert skipped(text) == {
        "from_pretrained(torch_dtype=torch.bfloat16)",
        "load_dataset(trust_remote_code=True)",
        "the reward lambda completions, **_: [0.0] * len(completions)",
        "processing_class = tokenizer",
    }


def test_names_of_other_functions_do_not_count():
    text = f"""
model = "m"
def short(completions, **kwargs):
    model = load_judge()
    return [len(text) for text in completions]
class Judge:
    model = None
def prepare(model): ...
GRPOTrainer(model, args=GRPOConfig(), {REST})
"""
    assert read(text).model == "m"


@pytest.mark.parametrize(
    ("train", "task", "comments"),
    [
        ("load_dataset('d')['test']", {"data": "d", "split": "test"}, set()),
        ("rows['train']", {"data": "d", "split": "train"}, set()),
        (
            "load_dataset('json', data_files='a.jsonl', split='train')",
            {"data": "a.jsonl"},
            set(),
        ),
        (
            "load_dataset('json', None, data_files='a.jsonl', split='train[:100]')",
            {"data": "a.jsonl"},
            {"load_dataset(split='train[:100]')"},
        ),
        (
            "load_dataset('json', data_files={'train': 'a.jsonl'})['train']",
            {},
            {"load_dataset(data={'train': 'a.jsonl'})"},
        ),
        (
            "load_dataset(path='d', name='main', revision='v1', data_dir='x')",
            {"data": "d", "subset": "main", "revision": "v1"},
            {"load_dataset(data_dir='x')"},
        ),
        (
            "load_dataset('d').map(f)",
            {},
            {"train_dataset=load_dataset('d').map(f)"},
        ),
        ("Dataset.from_list([])", {}, {"train_dataset=Dataset.from_list([])"}),
    ],
)
def test_data(train: str, task: dict[str, str], comments: set[str]):
    text = f"rows = load_dataset('d')\nGRPOTrainer('m', short, GRPOConfig(), {train})"
    assert read(text).task == task
    assert skipped(text) == comments


def test_configs_and_trainers_in_several_places():
    one = f"GRPOTrainer('m', args=args, {REST})"
    many = read(f"args = GRPOConfig(beta=1)\nargs = GRPOConfig(beta=2)\n{one}")
    assert many.fields == {}
    assert many.comments[0] == "the fields of GRPOConfig are in 2 places; add yours"
    only = read(f"def f(args):\n    {one}\nf(GRPOConfig(beta=2))")
    assert only.fields == {"beta": 2}
    sentence = "args=args; the fields are those of the script's only GRPOConfig"
    assert f"not carried over: {sentence}" in only.comments
    copied = f"args = GRPOConfig(beta=1)\nargs = replace(args, beta=2)\n{one}"
    assert sentence in skipped(copied)
    inline = f"base = GRPOConfig(beta=1)\nGRPOTrainer('m', args=replace(base, beta=2), {REST})"
    assert sentence.replace("=args", "=replace(base, beta=2)") in skipped(inline)
    several = read(f"GRPOTrainer('first')\nargs = GRPOConfig(beta=1)\n{one}")
    assert several.comments[0] == "the script makes 2 GRPOTrainers; this is the last"
    assert several.model == "m" and several.fields == {"beta": 1}


@pytest.mark.parametrize(
    ("change", "comment"),
    [
        ("args.beta *= 10", "args.beta, which is changed"),
        ("args.beta, other = 0.1, 2", "args.beta, which is changed"),
        ("del args.beta", "args.beta, which is changed"),
        ("same = args\nsame.beta += 1", "same.beta, which is changed"),
        ("if big:\n    args.beta = 0.2", "args.beta = 0.2, which is set in some cases"),
        ("def tune():\n    args.beta = 0.2", "args.beta, which is changed"),
    ],
)
def test_a_field_that_is_changed_has_no_value(change: str, comment: str):
    text = f"args = GRPOConfig(beta=0.04)\n{change}\nGRPOTrainer('m', args=args, {REST})"
    assert read(text).fields == {} and skipped(text) == {comment}


def test_a_field_is_read_wherever_the_config_is_kept():
    text = f"""
self.args = GRPOConfig(beta=0.04, max_steps=5)
self.args.beta = 0.1
trainer = GRPOTrainer("m", args=self.args, {REST})
trainer.args.max_steps = 7
"""
    assert read(text).fields == {"beta": 0.1, "max_steps": 7} and skipped(text) == set()
    text = f"trainer = GRPOTrainer('m', {REST})\ntrainer.args.beta = 0.1"
    assert read(text).fields == {"beta": 0.1}


@pytest.mark.parametrize(
    "call", ["setattr(args, 'beta', 0.1)", "tune(config=args)", "args.set_training(0.1)"]
)
def test_what_a_call_may_change_is_told(call: str):
    text = f"args = GRPOConfig()\n{call}\nGRPOTrainer('m', args=args, {REST})"
    assert skipped(text) == {f"{call}, if it changes fields"}


def test_branches_that_make_the_trainer_are_sure():
    one = f"GRPOTrainer('m', args=GRPOConfig(beta=beta), {REST})"
    assert read(f"try:\n    beta = 0.1\n    {one}\nfinally:\n    end()").fields == {"beta": 0.1}
    assert read(f"if big:\n    beta = 0.1\n{one}").fields == {}


def test_an_import_that_is_bound_again_is_no_reward():
    text = """
import theirs
from rw import f, g
f = wrap(f)
try:
    from rw import h
    import mine as theirs
except ImportError:
    from old import h
GRPOTrainer("m", [f, g, h, theirs.long], GRPOConfig(), load_dataset("d"))
"""
    assert read(text).rewards == [None, "rw:g", None, None]
    assert skipped(text) == {"the reward f", "the reward h", "the reward theirs.long"}


def test_an_adapter_of_another_task_and_a_set_of_layers():
    lora = "LoraConfig(task_type={!r}, target_modules={{'v_proj', 'q_proj'}})"
    text = f"GRPOTrainer('m', {REST}, peft_config={lora})"
    assert read(text.format("SEQ_CLS")).lora["targets"] == ["q_proj", "v_proj"]
    assert skipped(text.format("SEQ_CLS")) == {"LoraConfig(task_type='SEQ_CLS')"}
    assert skipped(text.format("CAUSAL_LM")) == set()
