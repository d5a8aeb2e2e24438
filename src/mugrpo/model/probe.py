"""What must hold of a model before it is trained or measured, tried as soon as it is loaded.

Sampling and training compute a row beside other rows, with other padding and in other steps, and
the trainer computes logits in chunks of its own. All of that must give what the model itself gives
for the row alone, or importance ratios are wrong from the first update on.

Suffixes: B rows, L tokens, H hidden size, V vocabulary.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from mugrpo.disk.errors import UsageError
from mugrpo.model.logprobs import full_logits
from mugrpo.model.rows import body_of
from mugrpo.model.shaping import Shaping
from mugrpo.processes.messages import first_line

_TOLERANCE = 1e-3  # of the largest number; rounding in fp32 is a thousandth of it


def context_of(config: Any) -> tuple[int | None, str]:
    """Return the most tokens that a row of a model may have, and why if its config says more.

    None is no limit. YaRN lengthens the context that a model was pretrained with by its factor,
    whether max_position_embeddings says so or not (as in Qwen's model cards), as vLLM has it.
    """
    text = config.get_text_config()
    declared: int | None = getattr(text, "max_position_embeddings", None)
    for rope in _ropes(text):
        if rope.get("rope_type") == "yarn" and declared is not None:
            original = rope.get("original_max_position_embeddings") or declared
            declared = max(declared, int(original * rope.get("factor", 1.0)))
    switch = _switch_of(text)
    if switch is None or (declared is not None and declared <= switch):
        return declared, ""
    return switch, f", as its rotation of longer rows depends on their length (config: {declared})"


def _ropes(config: Any) -> Iterator[dict[str, Any]]:
    """Yield the parameters of each kind of rotary embeddings that the model has."""
    rope = getattr(config, "rope_parameters", None) or {}
    nested = [one for one in rope.values() if isinstance(one, dict)]
    yield from nested or [rope]


def _switch_of(config: Any) -> int | None:
    """Return the longest row whose rotary embeddings do not depend on its length, None for any.

    Beyond it, LongRoPE takes other frequencies for the whole row (Ding et al., arXiv 2402.13753),
    and dynamic NTK others for each length: each new token changes what was computed of all before.
    """
    lengths = []
    for rope in _ropes(config):
        kind = str(rope.get("rope_type"))
        if kind == "longrope":
            declared = config.max_position_embeddings
            lengths.append(rope.get("original_max_position_embeddings", declared))
        elif "dynamic" in kind:
            lengths.append(config.max_position_embeddings)
    return min(lengths, default=None)


def bound_rows(model: nn.Module) -> None:
    """Let `model` refuse rows that are so long that their rotation depends on the longest of them.

    From here on, its forward passes raise UsageError if there is one.
    """
    for module in model.modules():
        if hasattr(module, "rope_type") and (limit := _switch_of(getattr(module, "config", None))):
            module.register_forward_pre_hook(partial(_refuse_longer, limit), with_kwargs=True)


def _refuse_longer(limit: int, _: nn.Module, inputs: Any, named: Any) -> None:
    positions: torch.Tensor = named["position_ids"] if "position_ids" in named else inputs[1]
    if (length := int(positions.max()) + 1) > limit:
        raise UsageError(
            f"a row has {length} tokens or more, but the model rotates rows of more than {limit} "
            "by their length, so that sampling and training would compute other logprobs; leave "
            "out long prompts, or lower rollouts.max_new_tokens"
        )


@torch.no_grad()
def untrainable(model: Any, path: str) -> str | None:
    """Return why logprobs of `model`, loaded from `path`, would not be its own, or None.

    The model's own logits of a short row and a longer one, padded on the right as in training, are
    compared with those that the trainer computes for the short row alone. NaN is let pass.
    """
    size = min(7, model.get_input_embeddings().weight.shape[0] - 1)
    ids_BL = torch.arange(2 * 12, device=model.device).view(2, 12) % size + 1
    short_1L = ids_BL[:1, :5]
    try:
        theirs_LV = model(input_ids=ids_BL, use_cache=False).logits[0, :5].float()
        hidden_LH = body_of(model)(input_ids=short_1L, use_cache=False).last_hidden_state[0]
        ours_LV = full_logits(hidden_LH, model.get_output_embeddings(), Shaping.of(model))
        if not _differ(ours_LV, theirs_LV):
            return None
        alone_LV = model(input_ids=short_1L, use_cache=False).logits[0].float()
    except Exception as error:  # other kinds of models may fail in any way
        return f"the model {path} fails on two rows of text ({first_line(error)}); train another"
    if _differ(alone_LV, theirs_LV):
        return (
            f"the model {path} computes a row otherwise beside a longer one, so that sampling and "
            "training would compute other logprobs; train another model"
        )
    return (
        f"the model {path} computes its logits otherwise than by its head, with a scale or cap "
        "that is known here, so its logprobs would be wrong; train another model"
    )


def _differ(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Return whether two tensors differ by more than rounding."""
    return ours.shape != theirs.shape or bool(
        (ours - theirs).abs().max() > _TOLERANCE * theirs.abs().max()
    )
