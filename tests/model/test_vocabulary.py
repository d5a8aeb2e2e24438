"""The vocabulary that is read without the weights equals that of the loaded model."""

from pathlib import Path

import pytest

from mugrpo.config.run import ModelOptions
from mugrpo.disk.errors import UsageError
from mugrpo.model import policy as policies
from mugrpo.model.loading import load_tokenizer, load_vocabulary
from mugrpo.model.policy import load_policy
from mugrpo.model.pretrained import cached
from mugrpo.model.vocabulary import Vocabulary
from tests.builders import tiny_policy
from tests.cases import some
from tests.faults.harm import edited


def both(options: ModelOptions, monkeypatch: pytest.MonkeyPatch) -> tuple[Vocabulary, Vocabulary]:
    """Return the vocabulary as read with the weights, and without them."""
    expected = load_policy(options).vocabulary
    tokenizer = load_tokenizer(options)
    with monkeypatch.context() as patch:
        patch.setattr(policies, "load_model", lambda *_: pytest.fail("the weights are read"))
        return expected, load_vocabulary(options, tokenizer)


@pytest.fixture(params=["gpt2", "gemma3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A tiny model of each form."""
    tiny_policy(request.param).save(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", some(1, ["chain", "letters", "smollm2"]))
def test_the_vocabulary_of_a_named_model(name: str, monkeypatch):
    if name == "smollm2" and not cached(name).exists():
        pytest.skip("smollm2 is not there")
    expected, actual = both(ModelOptions(path=name), monkeypatch)
    assert actual == expected and actual.size > 10 and actual.stop_ids


def test_the_generation_config_adds_ids_and_the_models_own_stands_in_for_it(folder, monkeypatch):
    options = ModelOptions(path=str(folder))
    edited(folder / "generation_config.json", eos_token_id=[15, 1])
    expected, actual = both(options, monkeypatch)
    assert actual == expected == Vocabulary(24, [1, 15])
    (folder / "generation_config.json").unlink()
    edited(folder / "config.json", eos_token_id=[1, 17])
    expected, actual = both(options, monkeypatch)
    assert actual == expected == Vocabulary(24, [1, 17])


def test_an_id_outside_the_embeddings_is_refused_in_the_same_words(folder: Path):
    edited(folder / "generation_config.json", eos_token_id=[1, 24])
    options = ModelOptions(path=str(folder))
    sentence = "the end-of-sequence id 24 is outside the model's 24 embeddings"
    with pytest.raises(UsageError, match=sentence) as loaded:
        load_policy(options)
    with pytest.raises(UsageError) as read:
        load_vocabulary(options, load_tokenizer(options))
    assert str(read.value) == str(loaded.value)
