#!/bin/sh
# accelerate 1.15.0, torch 2.13.0: layers with accelerate's hook are compiled one by one, up to eight.
#
# Guess, before it was run: a hook that does nothing changes nothing, as one of torch's own does. Twelve equal layers give one graph.
#
# Seen: without a hook and with torch's, one graph. With accelerate's, eight, which is torch's limit of recompilations; the four
# layers after them run as they are, with a warning, and outputs are right. accelerate sets `layer.forward` to a functools.partial, which
# torch.compile takes for another function in each layer. A lambda or a bound method in its place gives one graph.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q accelerate==1.15.0 torch==2.13.0
cat > "$folder/look.py" <<'PY'
import functools
import types

import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from torch._dynamo.testing import CompileCounter


def plain(layer, x):
    return x * layer.weight


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((8,), 2.0))

    def forward(self, x):
        return plain(self, x)


def graphs(change):
    """Return how many graphs twelve layers have, each changed by `change`, and whether their outputs are right."""
    torch._dynamo.reset()
    counter, layers = CompileCounter(), [Norm() for _ in range(12)]
    for layer in layers:
        change(layer)
    run = torch.compile(lambda layer, x: layer(x), backend=counter)
    right = all(torch.equal(run(layer, torch.ones(3, 8)), torch.full((3, 8), 2.0)) for layer in layers)
    return counter.frame_count, right


found = {
    "nothing": graphs(lambda layer: None),
    "torch's hook": graphs(lambda layer: layer.register_forward_hook(lambda module, inputs, output: output)),
    "accelerate's hook": graphs(lambda layer: add_hook_to_module(layer, ModelHook())),
    "forward = partial": graphs(lambda layer: setattr(layer, "forward", functools.partial(plain, layer))),
    "forward = bound method": graphs(lambda layer: setattr(layer, "forward", types.MethodType(plain, layer))),
}
for how, (count, right) in found.items():
    print(f"{how}: {count} graphs, outputs right: {right}")
assert [*found.values()] == [(1, True), (1, True), (8, True), (8, True), (1, True)]
PY
"$folder/venv/bin/python" "$folder/look.py" 2> "$folder/stderr" || { cat "$folder/stderr"; exit 1; }
