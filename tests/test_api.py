"""The documented API: its names, its page, what importing it loads, and that its examples work."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

import mugrpo
from mugrpo import report
from mugrpo.disk.shards import ShardSet, read_rollouts
from mugrpo.extensions.lab import bakeoff
from tests.blocks import blocks
from tests.cases import table
from tests.runs import ROOT, final_weights, read_metrics, write_config

PAGE = (ROOT / "docs" / "api.md").read_text()
EXAMPLES = [block.text for block in blocks("docs/api.md") if "import mugrpo\n\n" in block.text]


def names_used(source: str) -> set[str]:
    """Return the names that `source` uses as `mugrpo.NAME`."""
    return {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "mugrpo"
    }


def test_the_page_and_an_example_use_what_there_is_and_nothing_else():
    assert set(re.findall(r"`mugrpo\.(\w+)`", PAGE)) <= set(mugrpo.__all__)
    assert len(EXAMPLES) == 6
    for example in EXAMPLES:
        assert names_used(example) <= set(mugrpo.__all__)
    source = (ROOT / "examples" / "one_stage.py").read_text()
    used = set().union(*map(names_used, [source, *EXAMPLES]))
    assert used == {name for name in mugrpo.__all__ if callable(getattr(mugrpo, name))}


def test_the_example_of_one_stage_imports_nothing_else_of_mugrpo():
    source = (ROOT / "examples" / "one_stage.py").read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert not str(node.module).startswith("mugrpo")
        elif isinstance(node, ast.Import):
            names = {alias.name for alias in node.names if alias.name.startswith("mugrpo")}
            assert names <= {"mugrpo"}


@table("name", mugrpo.__all__)
def test_a_name_exists_and_has_a_docstring(name: str):
    thing = getattr(mugrpo, name)
    assert name in dir(mugrpo)
    if not callable(thing):
        return
    text = inspect.getdoc(thing) or ""
    assert text.endswith(".")
    if inspect.isclass(thing):
        members = [m for n, m in vars(thing).items() if n[0] != "_" and is_documented(m)]
        assert [member for member in members if not inspect.getdoc(member)] == []
    elif "torch.Tensor" in str(inspect.signature(thing)):
        assert re.search(r"\[(?:P, G|B, T|B|R)\]", text)


def is_documented(member: object) -> bool:
    return inspect.isfunction(member) or isinstance(member, property)


def test_type_checkers_and_the_interpreter_see_the_same_things():
    tree = ast.parse(Path(mugrpo.__file__).read_text())
    typed = {
        alias.asname or alias.name: getattr(importlib.import_module(str(node.module)), alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    plain = {name: value for name, value in typed.items() if not name.startswith("_")}
    renamed = {"group_advantages", "grpo_loss", "make_updates", "topr_loss"}
    assert plain.keys() | renamed == set(mugrpo.__all__)
    assert all(value is getattr(mugrpo, name) for name, value in plain.items())
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        getattr(mugrpo, "nonsense")  # noqa: B009


@table(
    ("code", "heavy"),
    [
        ("import mugrpo; dir(mugrpo)", {"torch", "transformers", "pyarrow", "numpy", "pydantic"}),
        ("import mugrpo.disk.shards", {"torch", "transformers", "pydantic"}),
        ("import mugrpo; mugrpo.write_rollouts; mugrpo.load_config()", {"torch", "transformers"}),
    ],
)
def test_importing_loads_only_what_is_used(code: str, heavy: set[str]):
    check = f"{code}\nimport sys\nsys.exit(' '.join({heavy} & sys.modules.keys()) or 0)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def replayed(run_dir: Path) -> Any:
    """Return a function that replays the responses to a prompt in a run's first stage."""
    kept = defaultdict(list)
    shards = ShardSet(run_dir / "stages" / "000" / "rollouts", "rollouts")
    for shard in shards.numbers():
        for rollout in read_rollouts(shards, shard):
            kept[rollout.prompt_ids.tobytes()].append(rollout)

    def sample(prompt_ids: Any) -> Any:
        rollout = kept[prompt_ids.tobytes()].pop(0)
        return rollout.response_ids, rollout.behavior_logprobs, rollout.finish_reason == "stop"

    return sample


@pytest.mark.long
def test_the_examples_of_the_page_do_what_it_says(tmp_path, monkeypatch, capsys, reference):
    resumed, refused, compared, sampled, elsewhere, by_hand = EXAMPLES
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path).rename("mine.toml")
    drawn = Path("runs/mine/report.html")  # drawing takes longer than the rest
    monkeypatch.setattr(report, "write_report", lambda *_: drawn)
    monkeypatch.setattr(bakeoff, "write_report", lambda *_: drawn)

    exec(resumed, {})
    assert final_weights(Path("runs/mine")) == final_weights(reference)
    accuracy = float(capsys.readouterr().out.splitlines()[-1])
    assert 0 <= accuracy <= 1

    exec(refused, {})
    assert capsys.readouterr().out.startswith("mine.toml --optimizer.lr fast: optimizer.lr")

    exec(compared, {})
    evaluations = [m for m in read_metrics(Path("runs/mine")) if m["kind"] == "evaluation"]
    printed = capsys.readouterr().out
    for line in evaluations:
        assert f"{line['update']} {line['accuracy']}\n" in printed
    assert f"{drawn}\n" in printed and "\n| grpo " in printed and "\n| mu-grpo " in printed
    arm = Path("runs/mine/bakeoff/stage-000/mu-grpo")  # the method of the run itself
    assert final_weights(arm, 2) == final_weights(reference, 2)

    exec(sampled, {})
    prompt, *lines = capsys.readouterr().out.splitlines()
    answer = str(eval(prompt.removesuffix("=")) % 10)  # of "3+2-1="
    judged = [line.split(" ") for line in lines]
    assert sorted(number for number, *_ in judged) == ["0", "1", "2", "3"]
    for _, reward, text in judged:
        assert float(reward) == (text.rpartition("=")[2] == answer)

    exec(elsewhere, {"sample": replayed(reference)})
    assert final_weights(Path("runs/elsewhere"), 2) == final_weights(reference, 2)

    names: dict[str, Any] = {}
    exec(by_hand, names)
    expected = plain_gradient(names["config"], names["group"], names["advantages_R"])
    for name, parameter in names["policy"].model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-3, atol=1e-6)
    assert max(gradient.abs().max() for gradient in expected.values()) > 1e-3


def plain_gradient(config: Any, group: list[Any], advantages: torch.Tensor) -> dict[str, Any]:
    """Return the gradient of -sum of A log p / tokens: GRPO's, as long as every ratio is 1."""
    model = mugrpo.load_policy(config.model).model
    tokens = sum(len(r.response_ids) for r in group)
    for r, advantage in zip(group, advantages.tolist(), strict=True):
        ids = torch.tensor([[*r.prompt_ids.tolist(), *r.response_ids.tolist()]])
        logits = model(input_ids=ids).logits[0, len(r.prompt_ids) - 1 : -1]
        logprobs = (logits / config.rollouts.temperature).log_softmax(-1)
        chosen = logprobs.gather(-1, ids[0, len(r.prompt_ids) :, None])
        (-advantage * chosen.sum() / tokens).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}
