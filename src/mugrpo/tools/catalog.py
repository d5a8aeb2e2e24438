"""What an update can be made of: every preset, and every part with equation, paper and defaults."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator

from mugrpo.config.load import describe_options
from mugrpo.config.options import NamedOptions
from mugrpo.config.preset import PRESETS, described
from mugrpo.config.registry import CHOICES

# Where the mathematics of a group's parts is: a module of functions, or a package of modules.
_FUNCTIONS = {
    "advantage": "mugrpo.optimize.advantages",
    "veto": "mugrpo.optimize.masks",
    "sequence_mask": "mugrpo.optimize.masks",
    "correction": "mugrpo.optimize.corrections",
    "reference": "mugrpo.optimize.reference",
}
_OTHERS = ("step", "sampling", "stage_until")
_CALLED = {"negative_advantage": "negative_advantage_veto"}  # where name and function differ


def catalog() -> Iterator[str]:
    """The lines of `mugrpo objectives`."""
    yield "presets (--preset NAME; options of your own are laid over it)"
    for name in PRESETS:
        yield f"  {name:<18}{described(name)}"
    for group in ("advantage", "objective", *(g for g in _FUNCTIONS if g != "advantage"), *_OTHERS):
        yield ""
        yield f"[{group}]"
        for name, options in CHOICES[group].items():
            yield from _part(group, name, options)


def _part(group: str, name: str, options: type[NamedOptions]) -> Iterator[str]:
    yield f'  name = "{name}"  {inspect.getdoc(options)}'
    if mathematics := _docstring(group, name):
        yield textwrap.indent(mathematics, "      ")
    for dotted, kind, default, meaning in describe_options(options):
        if dotted != "name":
            yield f"      {dotted}  {kind}  (default {default})  {meaning}"
    if needs := _needs(options):
        yield f"      needs {', '.join(needs)}: another forward pass over the stage's rollouts"


def _needs(options: type[NamedOptions]) -> tuple[str, ...]:
    required = {name for name, field in options.model_fields.items() if field.is_required()}
    return () if required else tuple(getattr(options.model_validate({}), "needs", ()))


def _docstring(group: str, name: str) -> str | None:
    if group == "objective":
        if name == "file":
            return None
        return inspect.getdoc(importlib.import_module(f"mugrpo.optimize.objectives.{name}").loss)
    functions = importlib.import_module(_FUNCTIONS[group]) if group in _FUNCTIONS else None
    return inspect.getdoc(getattr(functions, _CALLED.get(name, name), None))
