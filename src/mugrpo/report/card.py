"""A model card from a run's config and metrics: `mugrpo card`."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from mugrpo.config.run import method_of
from mugrpo.disk.errors import UsageError
from mugrpo.disk.metrics import number
from mugrpo.report import publish_text
from mugrpo.report.read import RunData, read_runs
from mugrpo.report.readable import in_markdown
from mugrpo.rollouts.evaluation import headline, value_text

_TRAINING = {
    "schedule.stages": "stages",
    "schedule.problems_per_update": "problems of an update",
    "schedule.group_size": "responses to a problem",
    "rollouts.max_new_tokens": "longest response, tokens",
    "optimizer.lr": "learning rate",
    "optimizer.lr_schedule": "its schedule",
    "lora.rank": "rank of the adapter",
    "seed": "seed",
}


def write_card(target: Path, out: Path | None) -> Path:
    """Write the card of the run at `target` to `out`, by default RUN/model_card.md.

    It has what is known: base model, method, options, accuracies or rewards with intervals, use.
    Returns the file. Raises UsageError if there is no run, if it has made no update, or if
    something is wrong with its files.
    """
    (run,) = read_runs([target])
    if run.faults:
        raise UsageError(f"no card of a damaged run: {run.faults[0]}")
    if not run.updates:
        raise UsageError(f"{target} has made no update: there is no model to describe")
    file = out or target / "model_card.md"
    publish_text(file, "\n".join(_lines(run)))
    return file


def _lines(run: RunData) -> Iterator[str]:
    base = str(run.options["model.path"])
    local = os.path.isabs(base) or base.count("/") != 1
    yield "---"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", base):
        yield f"base_model: {base}"
    yield "library_name: transformers"
    yield "pipeline_tag: text-generation"
    yield "tags: [reinforcement-learning, grpo, mugrpo]"
    yield "---"
    name = in_markdown(Path(base).name if local else base)
    updates = max(line["update"] for line in run.updates)
    yield f"\n# {name}, trained by reinforcement learning with verifiable rewards\n"
    yield (
        f"{name} after {updates:,} of {run.planned_updates:,} updates of "
        f"{_text(method_of(run.config))} on {_data(run)}, with mugrpo "
        f"{_text(run.provenance['mugrpo'])}. The "
        f"policy was refreshed {run.count('refresh')} times for its rollouts."
    )
    if run.evaluations:
        yield from _results(run)
    yield "\n## Training\n\n| | |\n| --- | --- |"
    yield f"| method | {_text(method_of(run.config))} |"
    for option, meaning in _TRAINING.items():
        if (value := run.options.get(option)) not in (None, 0) or option == "seed":
            yield f"| {meaning} | {_text(value)} |"
    known = [p for p in ("torch", "transformers") if p in run.provenance]
    packages = ", ".join(f"{p} {_text(run.provenance[p])}" for p in known)
    yield f"| packages | {packages} |"
    longest = _text(run.options["rollouts.max_new_tokens"])
    yield "\n## Use\n"
    yield "```python"
    adapter = bool(run.options.get("lora.rank"))
    yield f"from transformers import {'GenerationConfig, ' * adapter}pipeline"
    yield '\ngenerate = pipeline("text-generation", "THIS MODEL")'
    how = f"max_new_tokens={longest}"
    if adapter:  # of an adapter, transformers takes the base model's, which may stop elsewhere
        yield 'stops = GenerationConfig.from_pretrained("THIS MODEL")'
        how += ", generation_config=stops"
    if run.options.get("prompt.form") == "chat":
        yield 'messages = [{"role": "user", "content": "..."}]'
        yield f"generate(messages, {how})"
    else:
        yield f'generate("...", {how})'
    yield "```"
    if adapter:
        yield "\nThis is an adapter of peft on the base model."


def _data(run: RunData) -> str:
    task = run.config["task"]
    data = task.get("data") if task.get("name") == "dataset" else task.get("name")
    return _text(Path(data).name if os.path.isabs(str(data)) else data) if data else "its task"


def _text(value: object) -> str:
    """Return a value of the run, which may be a stranger's, as text in Markdown."""
    return in_markdown(str(value))


def _results(run: RunData) -> Iterator[str]:
    first, last = run.evaluations[0], run.evaluations[-1]
    name = headline(first, last)
    if max(line["update"] for line in run.updates) > last["update"]:
        last = {key: last.get(key) for key in ("problems", "temperature")}  # not measured
    yield "\n## Results\n"
    yield (
        f"{number(last, 'problems') or 0:.0f} held-out problems; 95 % intervals over problems, "
        "which say nothing about other seeds."
    )
    yield "\n| | before | after |\n| --- | --- | --- |"

    def row(title: str, of: str) -> str:
        return f"| {_text(title)} | {value_text(first, of)} | {value_text(last, of)} |"

    title = "accuracy" if name == "accuracy" else "mean reward"
    yield row(f"{title} at temperature {number(last, 'temperature') or 1:g}", name)
    each = run.keys("evaluation", "rewards/", "/mean") if name == "reward" else []
    for key in ("greedy/accuracy", *run.keys("evaluation", "pass@"), *each):
        if number(first, key) is not None and number(last, key) is not None:
            title = re.sub("^rewards/(.*)/mean$", r"mean of the reward \1", key)
            yield row(title.replace("greedy/accuracy", "greedy accuracy"), key)
