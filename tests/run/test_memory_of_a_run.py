"""What a run takes of memory, against numbers worked out by hand and what autograd keeps."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mugrpo.config.load import build_config
from mugrpo.disk.errors import UsageError
from mugrpo.run.memory import GIB, need_of, require_memory
from tests.cases import table
from tests.runs import ROOT

FORMS = ROOT / "configs" / "recipes" / "forms"
HALF_A_BILLION = {"path": str(FORMS / "qwen2.5-0.5b"), "precision": "fp32"}


@pytest.mark.long
@table(("published", "ratio"), [("qwen2.5-0.5b", 1.12), ("qwen3-1.7b", 1.0)])
def test_a_layer_keeps_what_autograd_saves(published: str, ratio: float):
    """Bytes of distinct tensors that are no weights: those of three layers less those of one."""
    raw = json.loads((FORMS / published / "config.json").read_text())
    raw |= {"vocab_size": 1000, "bos_token_id": None, "eos_token_id": None}
    raw.pop("layer_types", None)

    def saved(layers: int) -> int:
        form = AutoConfig.for_model(**{**raw, "num_hidden_layers": layers})
        model = AutoModelForCausalLM.from_config(form, dtype=torch.float32)
        kept = {p.untyped_storage().data_ptr(): 0 for p in model.parameters()}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            kept.setdefault(storage.data_ptr(), storage.nbytes())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = model.base_model(torch.zeros(2, 64, dtype=torch.int64), use_cache=False)
        assert output.last_hidden_state.requires_grad
        return sum(kept.values())

    def activations(tokens: int) -> float:
        model = {"path": str(FORMS / published), "precision": "fp32"}
        options = {"micro_batch_tokens": tokens}
        return need_of(build_config({"model": model, "optimizer": options}, "t")).micro_batch

    a_token = (activations(4096) - activations(2048)) / 2048 / raw["num_hidden_layers"]
    assert a_token / ((saved(3) - saved(1)) / 2 / 128) == pytest.approx(ratio, abs=0.02)


def test_what_does_not_fit_a_cpus_memory_is_refused_with_the_options_to_lower(
    monkeypatch: pytest.MonkeyPatch,
):
    """Half a billion parameters take 16 bytes each and 12 in a checkpoint: 13 of 24 GiB.

    4,096 tokens keep 24 layers x 120,832 bytes each, and logits: 13 more. 128 slots of 512 tokens,
    each with 24 layers of 256 numbers of keys and values, are 1.5 GiB.
    """
    monkeypatch.setattr("mugrpo.run.memory.host_memory", lambda: 24 * GIB)
    config = build_config({"model": HALF_A_BILLION}, "test")
    need = need_of(config)
    assert need.micro_batch == 4096 * 24 * 120_832 + 12 * 151_936 * 1024
    assert need.states + need.others == pytest.approx(28 * 494e6, rel=1e-3)
    assert need.cache == 128 * (512 * 24 * 256 * 4 + 16 * 151_936)
    with pytest.raises(UsageError, match=r"lower --optimizer.micro_batch_tokens \(now 4096\)"):
        require_memory(config)
    options = {"micro_batch_tokens": 1024}
    require_memory(build_config({"model": HALF_A_BILLION, "optimizer": options}, "test"))
