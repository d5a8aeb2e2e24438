"""The parts that are run on a GPU: they run on a CPU too, and compare what they say they do."""

import json
import re
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

import pytest

from card import decode, right, run, update
from card.update import LARGE, MEDIUM, SMALL, WAYS, Updates
from card.work import model_config, random_policy, run_config
from mugrpo.model import rows
from mugrpo.model.norms import use_short_norms
from mugrpo.optimize import batching, gradient
from side_by_side import ROOT
from tests.faults.harm import fail_at


def test_responses_are_equal_if_ids_and_reasons_are():
    ours = {"0": [[1, 2], [-1.0, -2.0], "stop"], "1": [[3], [-1.0], "length"]}
    theirs = {"0": [[1, 2], [-1.0, -2.5], "stop"], "1": [[3], [-4.0], "stop"]}
    found = right.compared(ours, theirs)
    assert found["equal"] == "1 of 2" and found["tokens"] == 3
    assert found["logprobs differ by"] == 0.5  # only of responses that are equal


def test_a_way_whose_micro_batches_became_smaller_says_so_and_lowers_those_of_no_other():
    updates = Updates(MEDIUM, tiny=True, precision="fp32")
    with pytest.MonkeyPatch.context() as patch:
        fail_at(patch, gradient, "reduced_loss", 1)
        assert updates.turn(0)["lowered"]
    assert not updates.turn(0)["lowered"]


def test_a_tree_leaves_the_gpu_to_the_other_one_between_turns(monkeypatch):
    server, calls = update.Server(), []
    server.updates = updates = Updates(MEDIUM, tiny=True, precision="fp32")
    assert updates.trainer.config.shares_gpus
    for owner, name in ((updates, "turn"), (updates.trainer, "wake"), (updates.trainer, "sleep")):
        monkeypatch.setattr(owner, name, lambda *_, name=name, **__: calls.append(name))
    server(what="turn", form=MEDIUM, tiny=True, repetition=0)
    assert calls == ["wake", "turn", "sleep"]


def test_engines_are_let_go_for_the_peers_copy_of_the_model():
    decoding = decode.Decoding()
    told = {"form": SMALL, "tiny": True, "slots": 4, "new": 6, "only_short": True, "profile": False}
    decoding(way="made", **told)
    assert [*decoding.engines] == ["made"]
    decoding(way="plain", **told)
    assert [*decoding.engines] == ["plain"]


def test_a_call_goes_on_without_a_missing_or_partial_piece(tmp_path, monkeypatch, capsys):
    ran = []
    monkeypatch.setattr(run, "HOME", tmp_path)
    monkeypatch.setattr(run, "run", lambda command, *_: ran.append(command) or True)
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    (tmp_path / "kept" / "vllm-02").mkdir(parents=True)
    (tmp_path / "kept" / "vllm-02" / "piece").write_bytes(b"the end of an archive")
    with pytest.raises(SystemExit, match="failed: keep=vllm-09, vllm"):
        run.main(["keep=vllm-09", "vllm", "look"])
    assert ran == run.PARTS["look"] and (tmp_path / "out").is_dir()
    assert capsys.readouterr().out.count("is left out") == 2
    with pytest.raises(SystemExit, match="there is no part lok"):
        run.main(["lok"])


def test_no_call_of_the_readme_takes_more_than_ten_minutes():
    calls = re.findall(
        r"card/run\.py ((?:[a-z]|keep=)[^`.]*)`", (ROOT / "benchmarks/README.md").read_text()
    )
    parts = [[word for word in call.split() if word in run.PARTS] for call in calls]
    assert len(parts) == 3
    for words in parts:
        assert 0 < sum(c.seconds for word in words for c in run.PARTS[word]) <= 600


def test_the_last_part_of_updates_runs_and_counts_waits_by_place(monkeypatch):
    server = update.Server()
    last = server(what="last", form=MEDIUM, tiny=True)
    assert last == {"notices": [], "waits": {}, "kernels": []}  # of a CPU
    real = traceback.extract_stack

    def stack():  # the checkout may be called mugrpo, too
        return [*real(), traceback.FrameSummary("/mugrpo/benchmarks/card/update.py", 1, "note")]

    def sent(values, device):
        warnings.warn("called a synchronizing CUDA operation", stacklevel=2)
        return rows.sent(values, device)

    monkeypatch.setattr(traceback, "extract_stack", stack)
    monkeypatch.setattr(batching, "sent", sent)
    places = server.updates.waits()
    assert places and all(place.startswith("optimize/batching.py:") for place in places)


def test_random_policies_have_the_norms_of_loaded_ones():
    policy = random_policy(model_config(MEDIUM, tiny=True), run_config())
    layers = [m for m in policy.model.modules() if type(m).__name__.endswith("RMSNorm")]
    ours = use_short_norms.__module__
    assert layers and all(type(layer).__module__ == ours for layer in layers)


@pytest.mark.long
@pytest.mark.parametrize("form", [MEDIUM, LARGE])
def test_all_ways_to_update_have_one_loss_and_gradient(form):
    updates = Updates(form, tiny=True, precision="fp32")
    for repetition in range(2):
        notes = [updates.turn(repetition, **how) for _, how in WAYS.values()]
        for name in ("loss", "grad_norm"):
            values = [note[name] for note in notes]
            assert values == pytest.approx([values[0]] * len(values), rel=1e-4, abs=1e-7)


@pytest.mark.long
def test_the_parts_run_with_two_trees(tmp_path):
    """The second tree is this one again, whose engine has eager steps on a CPU."""
    words = ["look", "right", "decode", "update", "refresh", "--tiny", "--old"]
    command = [sys.executable, "benchmarks/card/run.py", *words, str(ROOT), "--output"]
    done = subprocess.run([*command, str(tmp_path)], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {path.stem: json.loads(path.read_text()) for path in Path(tmp_path).glob("*.json")}
    equal = {(row[""], row["slots"]): row["equal"] for row in found["gpu_tokens"]["rows"]}
    assert len(equal) == 4
    assert equal["Qwen2 fp32", 24] == equal["Qwen2 fp32", 6] == "24 of 24"
    for name, count in (("decode_qwen2_5_0_5b", 5), ("update_r1_distill_qwen_1_5b", 6)):
        sides = found[f"gpu_{name}"]["sides"]
        assert len(sides) == count and all(len(side["notes"]) == 2 for side in sides.values())
    assert (tmp_path / "card.log").read_text().count("status 0") == 6
