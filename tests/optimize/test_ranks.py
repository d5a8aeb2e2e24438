"""Updates by two processes together equal those of one process, up to rounding."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from mugrpo.disk.errors import UsageError
from mugrpo.model.pretrained import EMBEDDED
from mugrpo.optimize.fsdp import distribute
from mugrpo.processes.ranks import ALONE, Ranks
from tests.builders import TINY_FORMS, saved_weights, tiny_policy
from tests.cases import some, table
from tests.ranked import started, work

# AdamW divides a small gradient by its own size, so its rounding would show in full. With this eps
# it does not, and three updates still move the weights by far more than the tolerance.
STEADY = {"optimizer": {"eps": 1e-3, "lr": 1e-4}}


def updates(folder: Path, model: str, until: int, count: int, config: dict, *more: str) -> Path:
    """Make updates from the newest state in `folder` up to `until`; return that state's folder. A
    single rank works in this process, which saves it the imports."""
    folder.mkdir(exist_ok=True)
    if model in TINY_FORMS:
        path = folder.parent / model
        tiny_policy(model).save(path)
        model = str(path)
    if count == 1:
        work(ALONE, folder, model, until, {"config": json.dumps(config)})
        return folder / str(until)
    chosen = dict(option.split("=") for option in more)
    started(count, work, folder, model, until, {"config": json.dumps(config), **chosen})
    return folder / str(until)


def assert_close(ours: Path, theirs: Path) -> None:
    actual, expected = (saved_weights(p) for p in (ours, theirs))
    assert actual.keys() == expected.keys()
    for name, tensor in actual.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.promise("other ranks")
@pytest.mark.parametrize(
    ("model", "last", "config"),
    some(
        1,
        [
            ("llama", 2, {}),
            ("chain", 3, {}),
            ("chain", 3, {"lora": {"rank": 4}, "optimizer": {"lr": 3e-3}}),
            ("chain", 10, {"model": {"gradient_checkpointing": True}}),
            ("qwen2", 10, {"preset": "m2po"}),  # its pre-pass looks at the whole update
            ("gpt2", 10, {"preset": "grpo", "optimizer": {"micro_batch_tokens": 100}}),
        ],
    ),
)
def test_two_ranks_make_the_updates_of_one(tmp_path: Path, model: str, last: int, config: dict):
    config = {**config, "optimizer": {**STEADY["optimizer"], **config.get("optimizer", {})}}
    alone = updates(tmp_path / "alone", model, last, 1, config)
    together = updates(tmp_path / "together", model, last, 2, config)
    assert_close(together, alone)
    lines, expected = (json.loads((p / "metrics.json").read_text()) for p in (together, alone))
    assert len(lines) == last
    for line, other in zip(lines[:3], expected[:3], strict=True):
        for key in ("loss", "grad_norm", "entropy", "kl_behavior", "ratio/negative/p50"):
            assert line[key] == pytest.approx(other[key], rel=1e-3, abs=1e-6), key
        for key in ("tokens", "zero_variance_share", "truncated_share", "skipped"):
            assert line[key] == other[key]


@pytest.mark.long
@pytest.mark.promise("other ranks")
# An adapter's weights must not be loaded into what blocks have gathered for the logprobs before.
@pytest.mark.parametrize("config", [{}, {"lora": {"rank": 4}, "optimizer": {"lr": 3e-3}}])
def test_after_a_sleep_ranks_compute_with_the_weights_that_they_save_and_hand_over(
    tmp_path: Path, config: dict
):
    """Embeddings, last norm and head belong to no block, so FSDP's root has to move, too."""
    config = {**config, "optimizer": {**STEADY["optimizer"], **config.get("optimizer", {})}}
    alone = updates(tmp_path / "alone", "llama", 3, 1, config)
    slept = updates(tmp_path / "slept", "llama", 3, 2, config, "naps=true")
    assert_close(slept, alone)
    if "lora" in config:
        return
    saved, handed_over = saved_weights(slept), saved_weights(slept / "handed over")
    used = load_file(slept / "used" / "model.safetensors")
    assert saved.keys() == handed_over.keys() == used.keys()
    for name, tensor in saved.items():
        assert torch.equal(tensor, handed_over[name]) and torch.equal(tensor, used[name]), name


@pytest.mark.long
def test_in_bf16_two_ranks_are_as_close_to_the_fp32_update_as_one(tmp_path: Path):
    """Both begin with weights that are spread within bf16's steps, and compute in bf16."""
    half = {**STEADY, "model": {"precision": "bf16"}}
    before = load_file(EMBEDDED["chain"] / "model.safetensors")

    def step(name: str, count: int, config: dict) -> torch.Tensor:
        after = saved_weights(updates(tmp_path / name, "chain", 1, count, config))
        return torch.cat([(after[key] - before[key]).flatten() for key in before])

    exact = step("exact", 1, STEADY)
    alone, together = step("alone", 1, half) - exact, step("together", 2, half) - exact
    assert 0 < together.norm() < 1.5 * alone.norm()


@pytest.mark.long
def test_one_rank_continues_from_two_and_two_from_one(tmp_path: Path):
    whole = updates(tmp_path / "whole", "chain", 10, 1, STEADY)
    half = updates(tmp_path / "two", "chain", 5, 2, STEADY)
    names = {p.name for p in half.glob("optimizer*")}
    assert names == {f"optimizer-0000{number}-of-00002.safetensors" for number in (1, 2)}
    (tmp_path / "one").mkdir()
    shutil.copytree(half, tmp_path / "one" / "5")
    assert_close(updates(tmp_path / "one", "chain", 10, 1, STEADY), whole)
    early = updates(tmp_path / "alone", "chain", 5, 1, STEADY)
    assert [p.name for p in early.glob("optimizer*")] == ["optimizer.safetensors"]
    assert_close(updates(tmp_path / "alone", "chain", 10, 2, STEADY), whole)


@pytest.mark.long
@pytest.mark.parametrize("model", ["chain", "llama", "gpt2"])
def test_a_sharded_model_is_saved_as_plain_files(tmp_path: Path, model: str):
    """Tied weights are saved once, with the usual names and shapes, so any program loads them."""
    alone = updates(tmp_path / "alone", model, 1, 1, STEADY)
    together = updates(tmp_path / "together", model, 1, 2, STEADY)
    ours, theirs = (saved_weights(p) for p in (together, alone))
    assert {k: v.shape for k, v in ours.items()} == {k: v.shape for k, v in theirs.items()}
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        assert (together / name).read_text() == (alone / name).read_text()
    assert_close(together, alone)
    sizes = [file.stat().st_size for file in sorted(together.glob("model-*-of-00002.safetensors"))]
    assert len(sizes) == 2 and max(sizes) < 0.7 * sum(sizes)  # each rank has written a part
    loaded = AutoModelForCausalLM.from_pretrained(together).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in ours.items())


@pytest.mark.long
def test_weights_that_the_config_ties_stay_untied_if_the_files_untie_them(tmp_path: Path):
    """transformers trusts the files, and so must the ranks that do not read them."""
    policy = tiny_policy("llama")
    assert policy.model.config.tie_word_embeddings
    head = policy.model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach() + 0.1)
    policy.save(tmp_path / "untied")
    model = str(tmp_path / "untied")
    alone = updates(tmp_path / "alone", model, 1, 1, STEADY)
    together = updates(tmp_path / "together", model, 1, 2, STEADY)
    assert "lm_head.weight" in load_file(alone / "model.safetensors")
    assert_close(together, alone)


def test_a_model_that_ranks_see_differently_is_refused_before_it_is_sharded(monkeypatch):
    monkeypatch.setattr(Ranks, "all", lambda self, value: [value, value[:-1]])
    policy = tiny_policy("llama")
    policy.ranks = Ranks(0, 2)
    with pytest.raises(UsageError, match=r"files and its config\.json do not agree"):
        distribute(policy)


@table(
    ("ranks", "pieces", "turns"),
    [
        (Ranks(0, 2), 5, [(0, True), (2, True), (4, True)]),
        (Ranks(1, 2), 5, [(1, True), (3, True), (4, False)]),
        (Ranks(), 3, [(0, True), (1, True), (2, True)]),
        (Ranks(1, 2), 1, [(0, False)]),
        (Ranks(2, 3), 2, [(1, False)]),
        (Ranks(1, 2), 0, []),
    ],
)
def test_pieces_are_dealt_out_in_rounds_and_who_has_none_does_the_last_again(ranks, pieces, turns):
    assert ranks.turns(pieces) == turns
