"""Copies stay as they are until the next one of the same name, which takes their place."""

from __future__ import annotations

import torch

from mugrpo.model.copies import Copies


def test_a_copy_is_its_own_until_the_next_of_its_name():
    copies, weight = Copies(), torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    first = copies.of("a", weight)
    other = copies.of("b", weight)
    with torch.no_grad():
        weight.mul_(3)
    assert first.tolist() == [1, 2] and not first.requires_grad
    second = copies.of("a", weight)
    assert second.data_ptr() == first.data_ptr()
    assert (second.tolist(), other.tolist()) == ([3, 6], [1, 2])


def test_another_form_gets_new_memory():
    copies, weight = Copies(), torch.tensor([[1.0, 2.001], [3.0, 4.0]])
    first = copies.of("a", weight)
    rounded = copies.of("a", weight, torch.bfloat16)
    assert rounded.dtype == torch.bfloat16 and rounded.tolist() == [[1, 2], [3, 4]]
    turned = copies.of("a", weight.t())
    assert turned.is_contiguous() and torch.equal(turned, weight.t())
    assert torch.equal(first, weight)
