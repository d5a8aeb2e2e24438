from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mugrpo.config.run import ModelOptions
from mugrpo.model.policy import Policy, load_policy
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.trainer import Trainer
from tests.builders import PROMPTS, encoded, save, stale, tiny_policy
from tests.cases import table
from tests.updates import config_of, weights

CONFIG = config_of(
    optimizer={"lr": 1e-3, "weight_decay": 0.1, "lr_schedule": "linear", "warmup_updates": 2},
    schedule={"stages": 1, "batches_per_stage": 6},
)


def policy_of(form: str) -> Policy:
    return load_policy(ModelOptions()) if form == "chain" else tiny_policy(form)


def moments(trainer: Trainer) -> dict[str, torch.Tensor]:
    names = {p: name for name, p in trainer.policy.model.named_parameters()}
    return {
        f"{names[p]} {key}": value.clone()
        for p, state in trainer.optimizer.state.items()
        for key, value in state.items()
    }


def assert_same(a: Trainer, b: Trainer) -> None:
    """Assert that weights, moments and counts are equal, bit for bit."""
    for ours, theirs in ((weights(a), weights(b)), (moments(a), moments(b))):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert (a.update, a.policy.update, a.nonfinite_in_a_row) == (
        b.update,
        b.policy.update,
        b.nonfinite_in_a_row,
    )


@pytest.fixture
def saved(experience: Experience, tmp_path: Path) -> tuple[Trainer, Path]:
    """A trainer after two updates, and the folder where it was saved."""
    trainer = Trainer(load_policy(ModelOptions()), CONFIG)
    for _ in range(2):
        trainer.step(stale(experience))
    save(trainer, tmp_path)
    return trainer, tmp_path


@table("form", ["chain", "llama", "gpt2"])  # embeddings untied, tied, tied
def test_a_loaded_trainer_continues_bit_for_bit(experience, tmp_path, form):
    trainer = Trainer(policy_of(form), CONFIG)
    for _ in range(2):
        trainer.step(stale(experience))
    save(trainer, tmp_path)
    resumed = Trainer(policy_of(form), CONFIG)
    resumed.load(tmp_path)
    assert_same(resumed, trainer)
    for _ in range(2):
        expected, actual = trainer.step(experience), resumed.step(experience)
        assert_same(resumed, trainer)
        timeless = [{k: v for k, v in m.items() if "time" not in k} for m in (expected, actual)]
        assert timeless[0] == timeless[1]


def test_the_count_of_nonfinite_updates_and_the_random_state_are_saved(saved):
    trainer, folder = saved
    trainer.nonfinite_in_a_row = 2
    torch.manual_seed(5)
    save(trainer, folder)
    drawn = torch.rand(3)
    torch.manual_seed(6)
    resumed = Trainer(load_policy(ModelOptions()), CONFIG)
    resumed.load(folder)
    assert resumed.nonfinite_in_a_row == 2
    assert torch.equal(torch.rand(3), drawn)


def test_a_saved_trainer_holds_no_pickle(saved):
    files = list(saved[1].rglob("*"))
    assert {"model.safetensors", "optimizer.safetensors", "trainer.json"} <= {f.name for f in files}
    assert {file.suffix for file in files} <= {".safetensors", ".json", ".jinja"}
    for file in files:  # not the start of a pickle, nor of a zip, which torch.save writes
        assert file.read_bytes()[:1] != b"\x80" and file.read_bytes()[:2] != b"PK"


def test_a_saved_trainer_is_an_ordinary_hugging_face_model(saved):
    trainer, folder = saved
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt_ids = encoded(trainer.policy, PROMPTS[0])
    assert tokenizer(PROMPTS[0])["input_ids"] == prompt_ids.tolist()
    ids = torch.from_numpy(prompt_ids).long()[None]
    logits = model(input_ids=ids).logits
    assert torch.equal(logits, trainer.policy.model(input_ids=ids).logits)
    before = load_policy(ModelOptions()).model(input_ids=ids).logits
    assert not torch.allclose(logits, before)  # these are the trained weights
