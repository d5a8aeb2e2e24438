"""GRPOConfig: a dataclass with TRL's fields and defaults, without TRL."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import field, make_dataclass
from difflib import get_close_matches
from typing import Any

from mugrpo.disk.errors import UsageError
from mugrpo.trl.fields import FIELDS, Kind

# Fields of this project's own: see docs/trl.md.
_COUNTS = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation"),
    *("generation_batch_size", "num_iterations"),
)
_OWN = (("method", str | None, None), ("stages", int | None, None), ("options", dict | None, None))


class _Checked:
    """What is known of every GRPOConfig."""

    def __post_init__(self) -> None:
        refuse(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, as transformers' callbacks ask for them."""
        return dict(vars(self))


def changed(args: Any, kind: Kind) -> Iterator[str]:
    """Yield a sentence for each field of `kind` that is set away from TRL's default."""
    for name, one in FIELDS.items():
        value = getattr(args, name)
        if one.kind == kind and is_set(value) and plain(value) != one.default:
            yield f"{name} = {value!r}: {one.text}"


def is_set(value: Any) -> bool:
    """Return whether an argument asks for anything: None and an empty table do not."""
    return value is not None and value != {}


def refuse(args: Any) -> None:
    """Raise UsageError if fields are set that have no meaning here, with the reason for each.

    Also raise it for a count that is not at least 1, and for `options` that are no table.
    """
    if sentences := list(changed(args, "refused")):
        raise UsageError(f"GRPOConfig: {'; '.join(sentences)} (docs/trl.md)")
    for name in _COUNTS:
        value = getattr(args, name)
        if value is not None and (not isinstance(value, int) or value < 1):
            raise UsageError(f"{name} = {value!r} must be an integer of at least 1")
    for name in ("options", "model_init_kwargs"):
        if not isinstance(getattr(args, name), dict | None):
            raise UsageError(f"{name} = {getattr(args, name)!r} must be a dict")


def warn(sentences: Iterator[str] | list[str]) -> None:
    """Warn of each sentence, as of the script's own line."""
    for sentence in sentences:
        warnings.warn(f"mugrpo.trl: {sentence}", UserWarning, stacklevel=3)


def plain(value: Any) -> Any:
    """Return the value of an enumeration's member, and anything else as it is."""
    return getattr(value, "value", value)


def nearest(name: str) -> str:
    """Return a hint at the field that is most similar to `name`, or ""."""
    near = get_close_matches(name, FIELDS, n=1, cutoff=0.9)
    return f"; did you mean {near[0]}?" if near else ""


def _make() -> Any:
    declared: list[Any] = []
    for one in FIELDS.values():
        default = field(default_factory=list) if one.default == [] else field(default=one.default)
        declared.append((one.name, eval(one.type), default))
    declared += [(name, kind, field(default=default)) for name, kind, default in _OWN]
    made = make_dataclass("GRPOConfig", declared, bases=(_Checked,))
    made.__module__, made.__doc__ = __name__, GRPO_CONFIG
    return made


GRPO_CONFIG = """TRL's GRPOConfig, with its fields and defaults, and three fields more.

`method` is a preset, such as "tapered-grpo", in place of the loss that TRL's fields describe.
`stages` is the number of stages, in place of a refresh for each generation of TRL. `options` has
options of the run by their dotted names, which replace all others. docs/trl.md lists what every
field does. Raises UsageError if a field is set that has no meaning here.
"""

GRPOConfig: Any = _make()
