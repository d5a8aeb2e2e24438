"""A config for a file of problems, guessed from its first rows: `mugrpo init`."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

from mugrpo.config.base import WorkerOptions
from mugrpo.config.run import ModelOptions
from mugrpo.config.tasks import DatasetOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import FinishReason, Response, Status
from mugrpo.model.pretrained import model_path
from mugrpo.rewards.verifiers import has_number
from mugrpo.tasks.cells import answer_of, entry, has, literal
from mugrpo.tasks.dataset import Dataset
from mugrpo.tasks.rows import Row, read_rows

# Names of columns, the likeliest first; a dotted one is inside a column of verl's files.
_ANSWERS = ("answer", "final_answer", "ground_truth", "reward_model.ground_truth")
_USUAL = {
    "prompt": ("prompt", "problem", "question", "query", "instruction", "input", "messages"),
    "answer": (*_ANSWERS, "expected_answer", "solution", "target", "label", "output"),
}
_LOOKED_AT = 1000  # rows
_MOST = 0.95  # share of the references that look like formulas; others must all be usable
_SHORT = 40  # characters of a reference that is compared letter by letter
_PROGRAM = re.compile(r"\n|\b(def|class|return|import|print|lambda|function)\b")
_TRIED = 8  # rows whose references a guessed reward judges
_EASY, _FEW = 60, 64  # a prompt of fewer characters asks for so few tokens
_PASSES = 2  # over the training problems, at most
_UPDATES = (12, 240)  # fewest and most

# Reward -> what is added to a prompt, the longest response in tokens, and what its references are.
_REWARDS = {
    "numeric": (r"\nThink briefly. Write the final answer as \boxed{number}.", 256, "numbers"),
    "math": (r"\nThink step by step. Write the final answer as \boxed{...}.", 1024, "formulas"),
    "exact": (r"\nWrite the answer alone as <answer>...</answer>.", 256, "short texts"),
    "code": (r"\nWrite the program in one block of code.", 1024, "tests"),
}

_STUB = '''"""Rewards of your own. A config names them: rewards = [{named}"{file}:brief"]."""


def brief(completions, {answer}**columns):
    """Return one number for each completion, or None to leave it out of its group.

    A run calls this as TRL does. `completions` are texts (of a prompt that is a conversation, lists
    of messages), and every column of the data is a list beside them. Rewards of several functions
    are added up, each times its weight.
    """
    return [0.1 if len(str(completion)) < 400 else 0.0 for completion in completions]
'''

_CONFIG = Path(__file__).with_name("template.toml")


def write_config(
    data: str, out: Path, model: str | None, say: Callable[[str], None], **columns: str | None
) -> None:
    """Write the config `out` and a stub of rewards beside it for the rows of `data`, and say why.

    `columns` may name those of "prompt" and "answer". A stub that exists is kept. Raises UsageError
    if the data cannot be read or have no column of prompts or one that is named, or if the config
    exists.
    """
    stub = out.with_name("rewards.py")
    if out.exists():
        raise UsageError(f"{out} exists already; name another with --out, or remove it")
    rows = read_rows(data)
    looked = rows[:_LOOKED_AT]
    prompt, answer = (_column(data, looked, what, columns.get(what)) for what in _USUAL)
    assert prompt is not None
    answer, references, reward, count = _guessed(data, looked, prompt, answer, say)
    added, tokens, kind = _REWARDS.get(reward, ("", 256, ""))
    if median(len(str(entry(row, prompt))) for _, row in looked) < _EASY:
        tokens = min(tokens, _FEW)
    train = max(1, len(rows) * 9 // 10)
    problems = min(16, max(2, train // 16))
    updates = min(max(_UPDATES[0], _PASSES * train // problems), _UPDATES[1])
    asked = "{prompt}" + added
    rewards = [reward] if reward else [f"{stub.name}:brief"]
    named = answer if reward else None
    chosen = model or _model()
    out.write_text(
        _CONFIG.read_text().format(
            data=data,
            out=out,
            model=json.dumps(chosen),
            data_text=json.dumps(data),
            prompt=json.dumps(prompt),
            answer=f"answer_column = {json.dumps(named)}\n" if named else "",
            template=json.dumps(asked.replace(r"\n", "\n")),
            rewards=", ".join(map(json.dumps, rewards)),
            stub=stub.name,
            batches=round(updates / 7),
            problems=problems,
            tokens=tokens,
            lr="2e-5" if "135M" in chosen or chosen == "smollm2" else "3e-6",
        )
    )
    kept = not _stub_written(stub, reward, answer)
    found = f"its answer in {named!r}" if named else "no column has answers that a reward compares"
    say(f"{data}: {len(rows)} rows; the problem is in {prompt!r}, {found}")
    if reward:
        say(f"{count} of {len(references)} answers are {kind}, so the reward is {reward!r}")
    else:
        say(f"write a reward of your own in {stub}")
    written = f"{out} is written ({stub} is yours)" if kept else f"{out} and {stub} are written"
    it = "it" if kept else "both" if not reward else f"it ({stub} has an example to add to rewards)"
    say(f"{written}; look at {it}, then: mugrpo check {out}")


def _guessed(
    data: str, rows: Sequence[Row], prompt: str, answer: str | None, say: Callable[[str], None]
) -> tuple[str | None, list[str], str, int]:
    """Return the answers' column, these, a reward that fits or "", and how many it can use."""
    references = [] if answer is None else list(_references(rows, answer))
    alone = [literal(text) for text in references]
    listed = all(isinstance(one, list) and len(one) == 1 for one in alone)
    if answer and listed and _reward(references)[0] != "code":
        answer = f"{answer}.0"  # each is a list with the answer alone
        references = list(_references(rows, answer))
    _require_whole_prompts(data, rows, prompt, references)
    reward, count = _reward(references)
    if reward and answer and (fault := _fault(data, prompt, answer, reward)):
        say(f"the reward {reward!r} does not fit: {fault}")
        reward = ""
    return answer, references, reward, count


def _require_whole_prompts(
    data: str, rows: Sequence[Row], prompt: str, references: Sequence[str]
) -> None:
    """Raise UsageError if a column besides `prompt` is part of what is asked."""
    if prompt == "instruction" and any(str(row.get("input") or "").strip() for _, row in rows):
        raise UsageError(
            f"{data}: 'input' says what 'instruction' is about (alpaca's form); join both in one "
            "column, such as 'prompt', and leave them out"
        )
    asked: dict[str, str] = {}
    for (place, row), reference in zip(rows, references, strict=False):
        text = json.dumps(entry(row, prompt), sort_keys=True)
        if asked.setdefault(text, reference) != reference:
            raise UsageError(
                f"{place} asks what an earlier row asks, and has another answer, so {prompt!r} is "
                "not all of the problem; join the columns that are in one, such as 'prompt'"
            )


def _fault(data: str, prompt: str, answer: str, reward: str) -> str | None:
    """Return why a reward cannot be right for some rows, or None.

    It must find their own references right, and wrong those of most other rows.
    """
    options = {"data": data, "prompt_column": prompt, "answer_column": answer}
    workers = WorkerOptions(count=1)
    if reward == "code":  # its references are no answers
        return None
    task = Dataset(DatasetOptions.model_validate({**options, "rewards": [reward]}), workers)
    try:
        some = task.every_problem()[:_TRIED]
        pairs = [(one, other) for one, other in zip(some, [*some[1:], some[0]], strict=True)]
        own = [(one, one.reference) for one in some]
        others = [
            (one, other.reference) for one, other in pairs if one.reference != other.reference
        ]
        answers = (
            Response(one, task.written(one, text), (), FinishReason.STOP)
            for one, text in own + others
        )
        right = [score.status is Status.RIGHT for score in task.score(answers)]
    except UsageError as error:
        return str(error)
    finally:
        task.close()
    if not all(right[: len(own)]):
        return f"it finds the reference {own[right.index(False)][1]!r:.60} wrong"
    if sum(right[len(own) :]) > len(others) / 2:
        return "it finds the references of other rows right, too"
    return None


def _stub_written(stub: Path, reward: str, answer: str | None) -> bool:
    """Write the stub, unless the file exists. Return whether it was written."""
    if stub.exists():
        return False
    named = f'"{reward}", ' if reward else ""
    argument = f"{answer}, " if answer and answer.isidentifier() else ""
    stub.write_text(_STUB.format(named=named, file=stub.name, answer=argument))
    return True


def _column(data: str, rows: Sequence[Row], what: str, named: str | None) -> str | None:
    """Return the `named` or first usual column that all rows have. Answers may have none: None."""
    names = (named,) if named else _USUAL[what]
    for name in names:
        if all(has(row, name) and entry(row, name) is not None for _, row in rows):
            return name
    if what != "prompt" and not named:
        return None
    raise UsageError(
        f"{data}: not every row has a column {' or '.join(names)}; name the columns "
        f"with --prompt-column and --answer-column (it has {', '.join(map(repr, rows[0][1]))})"
    )


def _references(rows: Sequence[Row], column: str) -> Iterator[str]:
    for place, row in rows:
        yield answer_of(entry(row, column), place, column)


def _reward(references: Sequence[str]) -> tuple[str, int]:
    """Return the first reward that can use most of the references, or "", and how many it can."""
    tests: dict[str, Callable[[str], bool]] = {
        "code": lambda text: literal(text) is not None and ("assert " in text or "inputs" in text),
        "numeric": lambda text: len(text) <= _SHORT and has_number(text),
        "math": lambda text: (
            len(text) <= 3 * _SHORT
            and not _PROGRAM.search(text)
            and (has_number(text) or bool(re.search(r"[\\^$=]|\d\s*[/(,]", text)))
        ),
        "exact": lambda text: len(text) <= _SHORT and "\n" not in text,
    }
    for reward, usable in tests.items():
        count = sum(map(usable, references))
        if references and count >= len(references) * (_MOST if reward == "math" else 1):
            return reward, count
    return "", 0


def _model() -> str:
    """Return a small model: the one in the cache, or its hub id."""
    try:
        model_path(ModelOptions(path="smollm2"))
    except UsageError:
        return "HuggingFaceTB/SmolLM2-135M-Instruct"
    return "smollm2"
