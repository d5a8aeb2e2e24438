"""Bytes worked out by hand for models of known shapes."""

import pytest
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from mugrpo.config.run import ModelOptions
from mugrpo.model.loading import model_config
from mugrpo.model.sizes import (
    Widths,
    activation_bytes,
    cache_bytes,
    head_bytes,
    slots_that_fit,
    widths_of,
)
from tests.runs import ROOT

FORMS = ROOT / "configs" / "recipes" / "forms"


def widths(name: str) -> Widths:
    return widths_of(model_config(ModelOptions(path=str(FORMS / name))))


def test_the_widths_of_qwens_models():
    """14 heads of 64, and 2 of keys and as many of values; 28 heads of 128, and 4 of each."""
    assert widths("qwen2.5-0.5b") == (24, 896, 896, 256, 4864, 151936)
    assert widths("qwen2.5-7b") == (28, 3584, 3584, 1024, 18944, 152064)
    assert cache_bytes(widths("qwen2.5-0.5b"), 2) == 24 * 256 * 2 == 12_288


def test_the_widths_of_a_model_whose_layers_differ_are_the_largest():
    """Gemma 4 has 8 heads of 256 in most layers and of 512 in others; Gemma 3n lists its MLPs."""
    config = transformers.CONFIG_MAPPING["gemma4_text"]()
    assert widths_of(config) == (30, 2304, 8 * 512, 4 * (512 + 512), 9216, 262144)
    config = transformers.CONFIG_MAPPING["gemma3n_text"](intermediate_size=[64] * 20 + [48] * 15)
    assert widths_of(config).inner == 64


@pytest.mark.parametrize("kind", sorted(MODEL_FOR_CAUSAL_LM_MAPPING, key=lambda k: k.__name__))
def test_every_causal_language_model_has_widths(kind):
    """What a config does not tell, as BLT's does not tell its parts', is 0."""
    try:
        config = kind()
    except Exception:  # it cannot be made of nothing
        pytest.skip("its config needs arguments")
    shape = widths_of(config)
    assert all(type(number) is int and number >= 0 for number in shape)
    assert slots_that_fit(80 << 30, 1000, cache_bytes(shape, 2), shape.vocabulary) > 0


@pytest.mark.parametrize(
    ("free", "slots"),
    [
        (0, 1),  # an engine tries one, whatever is free
        (55_229_439, 1),
        (55_229_440, 2),  # of 2 x 1,000 x 12,288 B of cache and 20 x 151,936 B of logits
        (64 * 27_614_720, 64),
        (127 * 27_614_720, 64),
        (128 * 27_614_720, 128),
        (40 << 30, 1536),  # 1,555
        (80 << 30, 2048),  # 3,110
    ],
)
def test_slots_that_fit(free, slots):
    assert slots_that_fit(free, 1000, 12_288, 151_936) == slots


def test_activations_of_a_token_of_one_and_a_half_billion_weights():
    """16 x 1,536 + 10 x 1,536 + 5 x 512 + 8 x 8,960 = 114,176 bytes a layer."""
    shape = widths("r1-distill-qwen-1.5b")
    assert shape == (28, 1536, 1536, 512, 8960, 151936)
    assert activation_bytes(shape, 2, checkpointing=False) == 29 * 114_176 == 3_311_104
    assert activation_bytes(shape, 2, checkpointing=True) == 28 * 3072 + 2 * 114_176
    assert activation_bytes(shape, 4, checkpointing=False) == 2 * 3_311_104
    assert head_bytes(shape, trained=True) == 151_936 * (20_480 + 6144)
    assert head_bytes(shape, trained=False) == 151_936 * 20_480


@pytest.mark.parametrize(("kind", "exact"), [("Qwen3", 1.0), ("Llama", 0.75), ("Qwen2", 0.75)])
def test_a_layer_keeps_what_is_counted(kind, exact):
    """The bytes of all tensors that autograd saves for 256 tokens of one layer, in bf16."""
    tokens, seen = 256, dict[int, int]()
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=128,
        intermediate_size=1024,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_hidden_layers=3,
        vocab_size=64,
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config).bfloat16()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    sizes, layers = [], model.model.layers
    for count in (1, 3):
        model.model.layers = layers[:count]
        seen.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model.model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
        sizes.append(sum(seen.values()))
    layer = (sizes[1] - sizes[0]) / 2 / tokens
    counted = activation_bytes(widths_of(config), 2, checkpointing=False) / 4
    assert exact - 0.01 < layer / counted <= 1.01
