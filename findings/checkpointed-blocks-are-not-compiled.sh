#!/bin/sh
# transformers 5.23.0 with torch 2.13.0: a block with gradient checkpointing is not compiled if
# anything in it breaks the graph, and nobody says so.
#
# Expected: `block.compile()` with an attention function under torch.compiler.disable compiles what
# is before and after it, with checkpointing as without. transformers 5.17 did so: it checkpointed
# outside of the block's forward pass.
# Seen: without checkpointing 4 graphs for two layers, with it 0. Checkpointing now happens within
# the forward pass, a graph cannot break inside it, and so dynamo leaves the whole block as it is:
# no error, no warning, the same loss. A norm of gradients that agrees proves nothing there. Without
# a break, checkpointed blocks are compiled.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0
cd "$folder"
cat >look.py <<'PY'
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM


def attention(module, query, key, value, mask, scaling=None, **_):
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    return out.transpose(1, 2), None


AttentionInterface.register("left_out", torch.compiler.disable(attention))
SIZES = dict(vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2)
found = {}
for checkpointing in (False, True):
    for kind in ("left_out", "sdpa"):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=2, use_cache=False))
        model.config._attn_implementation = kind
        if checkpointing:
            model.gradient_checkpointing_enable()
        for block in model.model.layers:
            block.compile()
        ids = torch.arange(10)[None]
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        found[checkpointing, kind] = counters["stats"]["unique_graphs"]
        print(f"checkpointing {checkpointing}, {kind}: {found[checkpointing, kind]} graphs, {loss:.6f}")
assert found[False, "left_out"] > 0 and found[False, "sdpa"] > 0 and found[True, "sdpa"] > 0
assert found[True, "left_out"] == 0, "it is compiled now"
PY
"$folder/venv/bin/python" -W ignore look.py
