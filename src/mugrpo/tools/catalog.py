"""What `mugrpo objectives` lists: presets, and parts with equation, paper and defaults."""

import importlib
import inspect
import textwrap
from collections.abc import Iterator

from mugrpo.config.base import NamedOptions, ObjectiveOptions, Part, imported
from mugrpo.config.describe import describe
from mugrpo.config.run import PRESETS, RunConfig, preset_summary
from mugrpo.config.training import SamplingOptions

# Group -> the module with the functions of its parts. Objectives have a module each.
_FUNCTIONS = {
    "advantage": "mugrpo.optimize.advantages",
    "veto": "mugrpo.optimize.masks",
    "sequence_mask": "mugrpo.optimize.masks",
    "correction": "mugrpo.optimize.corrections",
    "reference": "mugrpo.optimize.reference",
}
_CALLED = {"negative_advantage": "negative_advantage_veto"}  # name -> function, if they differ


def catalog() -> Iterator[str]:
    """Yield the lines of `mugrpo objectives`."""
    yield "presets (--preset NAME; your own options override it)"
    yield ""
    for name in PRESETS:
        yield f"  {name:<18}{preset_summary(name)}"
    for group in ("advantage", "objective", *(g for g in _FUNCTIONS if g != "advantage")):
        yield ""
        yield f"[{group}]"
        for name, options in RunConfig.choices()[group].items():
            yield from _part(group, name, options)
    yield ""
    yield "[sampling]"
    for option in describe(SamplingOptions):
        yield f"      {option.head}  {option.meaning}"


def _part(group: str, name: str, options: type[NamedOptions]) -> Iterator[str]:
    yield f'  name = "{name}"  {inspect.getdoc(options)}'
    if equation := equation_of(group, name):
        yield textwrap.indent(equation, "      ")
    for option in describe(options):
        if option.name != "name":
            yield f"      {option.head}  {option.meaning}"
    if needs := _needs(options):
        yield f"      needs {', '.join(needs)}: another forward pass over the stage's rollouts"


def _needs(options: type[NamedOptions]) -> tuple[str, ...]:
    """Return the logprobs that a part needs under its default options."""
    required = any(field.is_required() for field in options.model_fields.values())
    return options.model_validate({}).needs if issubclass(options, Part) and not required else ()


def equation_of(group: str, name: str) -> str | None:
    """Return the docstring of the function behind a part, or None if it has none."""
    if group == "objective":
        options = RunConfig.choices()["objective"][name]
        assert issubclass(options, ObjectiveOptions)
        own = f"mugrpo.optimize.objectives.{name}"
        return None if name == "file" else inspect.getdoc(imported(f"{options.module or own}:loss"))
    if group not in _FUNCTIONS:
        return None
    functions = importlib.import_module(_FUNCTIONS[group])
    function = getattr(functions, _CALLED.get(name, name), None)
    return inspect.getdoc(function) if function else None
