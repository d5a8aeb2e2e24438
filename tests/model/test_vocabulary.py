"""The vocabulary without the weights is the loaded model's, and a tokenizer.json decides the ids.

Of the tokenizer that is made here, "0" to "9" are 0 to 9, a blank (in bytes-to-text form) is 10,
"12" 11, "123" 12, and the end 13.
"""

import json
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from mugrpo.config.run import ModelOptions, PromptOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Problem
from mugrpo.model import policy as policies
from mugrpo.model.loading import load_tokenizer, load_vocabulary
from mugrpo.model.policy import load_policy
from mugrpo.model.pretrained import cached
from mugrpo.model.vocabulary import Vocabulary
from mugrpo.rollouts.notices import notices
from mugrpo.rollouts.prompts import PromptEncoder
from tests.builders import tiny_policy
from tests.cases import some, table
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


GROUPS = r"\p{N}{1,3}|\s"  # up to three digits belong together; Qwen's rules take one at a time
VOCABULARY = {**{str(digit): digit for digit in range(10)}, "Ġ": 10, "12": 11, "123": 12}


def qwen2_folder(folder: Path, pattern: str, tokenizer_class: str | None = None) -> ModelOptions:
    """Write a folder of a qwen2 model, without weights, whose tokenizer splits by `pattern`."""
    model = models.BPE({**VOCABULARY, "<|endoftext|>": 13}, [("1", "2"), ("12", "3")])
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            # as in the files of Qwen, where the class of transformers has trim_offsets=True
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {} if tokenizer_class is None else {"tokenizer_class": tokenizer_class}
    config = {"eos_token": "<|endoftext|>", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": 14}))
    return ModelOptions(path=str(folder))


# LlamaTokenizerFast is that of DeepSeek-R1-Distill-Qwen.
@table("named", [None, "Qwen2Tokenizer", "LlamaTokenizerFast", "PreTrainedTokenizerFast"])
def test_the_ids_are_those_of_the_file_also_after_saving(named, tmp_path: Path):
    options = qwen2_folder(tmp_path / "model", GROUPS, named)
    by_hand = [12, 10, 4, 5]  # 123, a blank, 4, 5
    tokenizer = load_tokenizer(options)
    assert tokenizer("123 45", add_special_tokens=False)["input_ids"] == by_hand
    assert tokenizer.decode(by_hand) == "123 45" and tokenizer.eos_token_id == 13
    tokenizer.save_pretrained(tmp_path / "model")
    assert load_tokenizer(options)("123 45", add_special_tokens=False)["input_ids"] == by_hand


@table("left", ["config.json", "tokenizer_config.json"])
def test_a_folder_whose_tokenizer_was_not_saved_is_refused(left: str, tmp_path: Path):
    """Of a qwen2 folder without tokenizer.json, transformers makes a tokenizer of one token."""
    options = qwen2_folder(tmp_path, GROUPS)
    for file in {"tokenizer.json", "tokenizer_config.json"} - {left}:
        (tmp_path / file).unlink()
    with pytest.raises(UsageError, match=r"it has special tokens alone\); name a whole directory"):
        load_tokenizer(options)


def test_how_many_prompts_other_programs_would_read_otherwise_is_said_if_any(tmp_path: Path):
    """Of 123 and 45, Qwen's rules give the first other ids: 1, 2, 3."""
    tokenizer = load_tokenizer(qwen2_folder(tmp_path, GROUPS))
    assert AutoTokenizer.from_pretrained(tmp_path)("123")["input_ids"] == [1, 2, 3]
    problems = [Problem(text, text, "") for text in ("123", "45")]
    (told,) = notices(PromptEncoder(tokenizer, 14, PromptOptions()), [13], problems)
    assert "1 of 2 prompts have other ids in transformers' Qwen2Tokenizer" in told
    tokenizer = load_tokenizer(qwen2_folder(tmp_path, PRETOKENIZE_REGEX))
    assert type(tokenizer).__name__ == "Qwen2Tokenizer"
    assert tokenizer("123 4")["input_ids"] == [1, 2, 3, 10, 4]
    problems = [Problem("1", "123", "")]
    assert list(notices(PromptEncoder(tokenizer, 14, PromptOptions()), [13], problems)) == []
