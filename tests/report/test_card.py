"""The model card of a run."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mugrpo.cli import main
from mugrpo.config.run import ModelOptions
from mugrpo.disk.records import FinishReason
from mugrpo.disk.run_dir import RunDir
from mugrpo.engines.base import Request
from mugrpo.model.policy import load_policy
from mugrpo.report.card import write_card
from tests.builders import PROMPTS, generated
from tests.faults.harm import summed
from tests.report.synthetic import evaluation, update, write_config, write_metrics
from tests.runs import TEMPLATE, read_metrics


def test_a_card_has_the_runs_numbers_and_a_header_that_the_hub_reads(reference, tmp_path):
    assert main(["card", str(reference), "--out", str(tmp_path / "card.md")]) == 0
    _, header, text = (tmp_path / "card.md").read_text().split("---\n", 2)
    assert yaml.safe_load(header)["library_name"] == "transformers"
    evaluations = [line for line in read_metrics(reference) if line["kind"] == "evaluation"]
    for line in (evaluations[0], evaluations[-1]):
        assert f"{line['accuracy']:.3f} ({line['accuracy_low']:.3f} to " in text
    assert re.search(r"\| method \| \S+ \|", text) and "pipeline(" in text


def test_its_example_runs_as_printed_and_stops_where_training_stopped(reference, tmp_path):
    """The template that prompts were written with is the run's own file, not the base model's."""
    main(["card", str(reference), "--out", str(tmp_path / "card.md")])
    code = (tmp_path / "card.md").read_text().split("```python\n")[1].split("```")[0]
    folder = RunDir(reference).checkpoint(RunDir(reference).newest_update())
    policy = load_policy(ModelOptions(path=str(folder)))
    policy.tokenizer.chat_template = TEMPLATE
    stored = json.loads((reference / "config.json").read_text())
    longest = stored["config"]["rollouts"]["max_new_tokens"]
    reasons = set()
    for prompt in PROMPTS:
        names: dict[str, Any] = {}
        called = code.replace("THIS MODEL", str(folder)).replace("...", prompt)
        called = called.replace("generate(messages", "said = generate(messages, do_sample=False")
        exec(called, names)
        turns = names["said"][0]["generated_text"]
        ids = policy.tokenizer.apply_chat_template(turns[:1], add_generation_prompt=True)
        asked = Request(np.array(ids["input_ids"], np.int32), 0)
        (ours,) = generated(policy, [asked], temperature=1e-3, max_new_tokens=longest)
        said = policy.tokenizer.decode(ours.ids, skip_special_tokens=True)
        assert turns[1]["content"] == said
        reasons.add(ours.finish_reason)
    assert FinishReason.STOP in reasons


def test_an_accuracy_that_was_not_measured_is_not_in_the_card(tmp_path: Path):
    write_config(tmp_path)
    write_metrics(tmp_path, [evaluation(0, 0.25), update(1), update(2)])
    text = write_card(tmp_path, None).read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| accuracy")]
    assert row.split(" | ")[1:] == ["0.250", "not measured |"] and "after 2 of " in text


def test_texts_of_a_run_are_text_in_its_card(tmp_path: Path):
    bad = "\x1b[2J\x00</td><script>`|\n---"
    write_config(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    config = stored["config"]
    config |= {"preset": bad, "seed": bad, "lora": {"rank": bad}, "model": {"path": f"a/{bad}"}}
    config |= {"task": {"name": "dataset", "data": bad}, "prompt": {"form": "chat"}}
    config["rollouts"]["max_new_tokens"] = config["optimizer"]["lr"] = bad
    (tmp_path / "config.json").write_text(json.dumps(stored))
    summed(tmp_path / "config.json")
    write_metrics(tmp_path, [evaluation(0, 0.25), update(1)])
    text = write_card(tmp_path, None).read_text()
    assert not re.search(r"[\x00-\x09\x0b-\x1f]|<", text) and text.count("&lt;script>") >= 5
    assert text.count("\n---\n") == 1 and "base_model" not in text
