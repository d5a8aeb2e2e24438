#!/bin/sh
# torch 2.13.0: a fused optimizer changes weights without a trace in their `_version`.
#
# Expected: every optimizer changes weights in place, so their version counter rises, and what was
# computed from the old weights can tell that they are gone: a copy kept beside the model, and
# autograd, which refuses a backward pass through a tensor that was changed since.
# Seen: AdamW, Adam, SGD and Adagrad raise the counter, but with fused=True it stays where it was. A
# backward pass after such a step is not refused, and its gradient mixes old activations with new
# weights: here 1 or less in place of 2. On a CPU; the weights themselves are the same.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy
cd "$folder"
cat >look.py <<'PY'
import torch
from torch.optim import SGD, Adagrad, Adam, AdamW


def stepped(kind, fused):
    """Return the weight after a step, its version's rise, and dy/dx of y = w x, made at w = 2."""
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    x = torch.tensor([3.0], requires_grad=True)
    optimizer = kind([weight], lr=1.0, fused=fused)
    y = (weight * x).sum()
    weight.grad, before = torch.ones(1), weight._version
    optimizer.step()
    rose = weight._version - before
    try:
        y.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error), error
        return weight.item(), rose, "refused"
    return weight.item(), rose, x.grad.item()


for kind in (AdamW, Adam, SGD, Adagrad):
    plain, fused = stepped(kind, False), stepped(kind, True)
    print(f"{kind.__name__}: (weight, version, gradient) {plain}, fused {fused}")
    assert abs(plain[0] - fused[0]) < 1e-5 and plain[0] < 1.5, "the steps differ"
    assert plain[1] > 0 and plain[2] == "refused"
    assert fused[1] == 0, "a fused step raises the version now"
    assert fused[2] == fused[0], "the gradient is no longer the new weight"
PY
"$folder/venv/bin/python" -W ignore look.py
