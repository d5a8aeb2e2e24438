"""Other programs' graders on the responses of an evaluation, and how all graders agree.

`evaluation_responses.py` writes the responses, one JSON object a line, with the verdicts of the
suite's own graders (null if one has none) and the answers that they read:

    {"response": "PROBLEM_ID/SAMPLE", "kind": "gsm8k", "reference": "18", "text": "...",
     "verdicts": {"math": {"right": true, "answer": "18"}, "plain": {...}}}

This script adds the verdicts of lm-eval 0.4.13 or lighteval 0.13 and prints the table. Nothing is
generated: each program extracts and compares as its own tasks do (kind "gsm8k": gsm8k; kind "math":
hendrycks_math500 and minerva_math500, or math_500). It runs under the interpreter of an environment
that has the program, which need not have mugrpo. For all graders in one table, pass the file on:

    lm_eval_env/bin/python benchmarks/evaluation_peer.py responses.jsonl --program lm-eval \
        --out judged.jsonl
    lighteval_env/bin/python benchmarks/evaluation_peer.py judged.jsonl --program lighteval
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Verdict = dict[str, Any]  # {"right": bool or None, "answer": str or None}

KINDS = ("gsm8k", "math")
_LM_EVAL_TASKS = {"gsm8k": ("gsm8k",), "math": ("hendrycks_math500", "minerva_math500")}


def lm_eval_verdicts(kind: str, rows: Sequence[Row]) -> dict[str, list[Verdict]]:
    """Return the verdicts of lm-eval on rows of one kind: "TASK METRIC FILTER" -> one per row.

    Its own tasks judge, with their filters, but on a local file in the place of their data set, in
    which each response is a row of its own. A solution is no more than the reference in a box.
    """
    from lm_eval.api.instance import Instance

    found: dict[str, list[Verdict]] = {}
    for name in _LM_EVAL_TASKS[kind]:
        with tempfile.TemporaryDirectory() as folder:
            task = _lm_eval_task(name, rows, Path(folder))
            documents = list(task.test_docs())
        instances = [
            Instance("generate_until", document, ("", {}), index, resps=[row["text"]])
            for index, (document, row) in enumerate(zip(documents, rows, strict=True))
        ]
        task._instances = instances
        task.apply_filters()
        for filter_ in instances[0].filtered_resps:
            for document, instance in zip(documents, instances, strict=True):
                read = instance.filtered_resps[filter_]
                for metric, value in task.process_results(document, [read]).items():
                    words = [name, metric] + ([] if filter_ == "none" else [filter_])
                    answer = _LM_EVAL_READINGS[f"{name} {metric}"](read)
                    verdict = {"right": bool(value), "answer": answer}
                    found.setdefault(" ".join(words), []).append(verdict)
    return found


def _lm_eval_task(name: str, rows: Sequence[Row], folder: Path) -> Any:
    """Return lm-eval's task `name` on `rows`, written to `folder`, in the place of its data."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    data, task = folder / "rows.jsonl", folder / f"{name}.yaml"
    data.write_text("".join(json.dumps(_document(row)) + "\n" for row in rows))
    tasks = Path(lm_eval.__file__).parent / "tasks"
    changed = {
        "include": str(tasks / name.removesuffix("500") / f"{name}.yaml"),
        "task": name,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "training_split": None,
        "fewshot_split": None,
        "test_split": "test",
        "num_fewshot": 0,
    }
    task.write_text(json.dumps(changed))  # which is YAML, too
    manager = TaskManager(include_defaults=False)
    (loaded,) = manager.load([str(task)])["tasks"].values()
    return loaded


def _document(row: Row) -> Row:
    """Return a row with the columns of GSM8K, MATH-500 and hendrycks_math."""
    reference = row["reference"]
    return {
        "question": "",
        "problem": "",
        "answer": reference,
        "solution": rf"\boxed{{{reference}}}",
    }


def _between_dollars(text: str) -> str:
    """Return what hendrycks_math500 compares with the reference, as its process_results does."""
    first, last = text.find("$"), text.rfind("$")
    return text if first == last else text[first + 1 : last]


def _minerva_answer(text: str) -> str | None:
    from lm_eval.tasks.minerva_math import utils

    answer = utils.normalize_final_answer(utils.get_unnormalized_answer(text))
    return None if answer == "[invalidanswer]" else str(answer)


def _math_verify_answer(text: str) -> str | None:
    from math_verify import parse

    return ", ".join(map(str, parse(text))) or None


_LM_EVAL_READINGS: dict[str, Callable[[str], str | None]] = {
    "gsm8k exact_match": lambda read: None if read == "[invalid]" else read,  # a filter has read
    "hendrycks_math500 exact_match": _between_dollars,
    "minerva_math500 exact_match": _minerva_answer,
    "minerva_math500 math_verify": _math_verify_answer,
}


def lighteval_verdicts(kind: str, rows: Sequence[Row]) -> dict[str, list[Verdict]]:
    """Return the verdicts of lighteval on rows of one kind: "TASK METRIC" -> one per row."""
    from lighteval.metrics.metrics import Metrics
    from lighteval.models.model_output import ModelResponse
    from lighteval.tasks.requests import Doc

    if kind == "gsm8k":
        name, judge = "gsm8k extractive_match", Metrics.expr_gold_metric.value.sample_level_fn
        compute = judge.compute
    else:  # pass@1 of one response, of which this is the verdict
        judge = Metrics.pass_at_k_math(sample_params={"k": 1, "n": 1}).sample_level_fn
        name, compute = "math_500 pass@1", judge.compute_score
    verdicts: list[Verdict] = []
    for row in rows:
        reference, text = row["reference"], row["text"].strip()
        gold = f" {reference}" if kind == "gsm8k" else rf"ANSWER: $\boxed{{{reference}}}$"
        document = Doc(query="", choices=[gold], gold_index=0)
        right = compute(doc=document, model_response=ModelResponse(text=[text])) == 1
        read = (document.specific or {}).get("extracted_predictions", [])
        verdicts.append({"right": right, "answer": ", ".join(read) or None})
    return {name: verdicts}


PROGRAMS = {"lm-eval": lm_eval_verdicts, "lighteval": lighteval_verdicts}


def judge(rows: Sequence[Row], program: str) -> None:
    """Add the program's verdicts to `rows`, as "PROGRAM TASK METRIC FILTER"."""
    for kind in KINDS:
        mine = [row for row in rows if row["kind"] == kind]
        if not mine:
            continue
        for grader, verdicts in PROGRAMS[program](kind, mine).items():
            for row, verdict in zip(mine, verdicts, strict=True):
                row["verdicts"][f"{program} {grader}"] = verdict


# (part of a grader's name, test, why its verdict differs). The first that fits is the reason. The
# test gets the text, what the grader read in it, the reference and its verdict.
_Test = Callable[[str, str | None, str, bool], bool]
_REASONS: list[tuple[str, _Test, str]] = [
    (
        "strict-match",
        lambda text, read, reference, right: read is None,
        'accepts only "#### NUMBER", which the prompt does not ask for',
    ),
    (
        "flexible-extract",
        lambda text, read, reference, right: not re.search(r"[0-9]", read or ""),
        "takes the dollars and periods after a formula for the last number",
    ),
    (
        "flexible-extract",
        lambda text, read, reference, right: not right and _number(read) == _number(reference),
        "compares numbers as text: 18.00 is not 18",
    ),
    (
        "flexible-extract",
        lambda text, read, reference, right: True,
        "takes the last number of the text, wherever it stands",
    ),
    (
        "hendrycks_math500",
        lambda text, read, reference, right: text.count("$") < 2,
        "compares the whole text, which has no two dollars",
    ),
    (
        "hendrycks_math500",
        lambda text, read, reference, right: True,
        "compares all between the first and the last dollar, the box included, as text",
    ),
    (
        "minerva_math500 exact_match",
        lambda text, read, reference, right: read is None,
        'accepts only "Final Answer: The final answer is ... I hope it is correct."',
    ),
    (
        "math_verify",
        lambda text, read, reference, right: right,
        "math-verify without the stricter rules of docs/verification.md",
    ),
    (
        "math_verify",
        lambda text, read, reference, right: text.count(r"\boxed") > 1,
        "math-verify takes several boxes for a set",
    ),
    (
        "math_verify",
        lambda text, read, reference, right: bool(re.search(r"[<>]", read or "")),
        "does not take an inequality for an interval",
    ),
    (
        "lighteval",
        lambda text, read, reference, right: right,
        "lighteval's form of math-verify, without the stricter rules of docs/verification.md",
    ),
    (
        "lighteval",
        lambda text, read, reference, right: bool(re.search(r"[<>]", read or "")),
        "does not take an inequality for an interval",
    ),
    (
        "lighteval",
        lambda text, read, reference, right: read is None,
        "finds no number or formula",
    ),
    (
        "plain",
        lambda text, read, reference, right: not right and read is not None,
        "compares text and exact numbers, and evaluates no expression",
    ),
    (
        "plain",
        lambda text, read, reference, right: not right,
        'finds no box, no "answer is" and no number that stands alone at the end',
    ),
    (
        "plain",
        lambda text, read, reference, right: True,
        "reads words, too",
    ),
]


def _number(text: str | None) -> float | None:
    """Return the number that is written with or without dollars, commas and a last period."""
    try:
        return float(re.sub(r"[$,]|\.$", "", text or ""))
    except ValueError:
        return None


def reason(grader: str, text: str, read: str | None, reference: str, right: bool) -> str:
    """Return why a grader's verdict on a response differs from others; "" if it is not known."""
    return next(
        (
            why
            for part, test, why in _REASONS
            if part in grader and test(text, read, reference, right)
        ),
        "",
    )


def summary(rows: Sequence[Row], examples: int | None = None) -> Iterator[str]:
    """Yield the lines of the tables: averages, agreement of each pair, and disagreements.

    Of the disagreements with the same grader for the same reason, `examples` are listed, or all.
    """
    for kind in KINDS:
        if mine := [row for row in rows if row["kind"] == kind]:
            yield from _of_kind(kind, mine, examples)


def _of_kind(kind: str, rows: Sequence[Row], examples: int | None) -> Iterator[str]:
    graders = list(dict.fromkeys(name for row in rows for name in row["verdicts"]))
    right = {
        name: [row["verdicts"].get(name, {"right": None})["right"] for row in rows]
        for name in graders
    }
    yield f"## {kind}: {len(rows)} responses"
    yield ""
    yield "| grader | right | judged | average |"
    yield "| --- | --- | --- | --- |"
    for name in graders:
        judged = [verdict for verdict in right[name] if verdict is not None]
        average = f"{sum(judged) / len(judged):.4f}" if judged else ""
        yield f"| {name} | {sum(judged)} | {len(judged)} | {average} |"
    yield ""
    yield "| first | second | both right | only first | only second | both wrong | agree |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for first, second in combinations(graders, 2):
        pairs = Counter(zip(right[first], right[second], strict=True))
        counts = [pairs[pair] for pair in ((1, 1), (1, 0), (0, 1), (0, 0))]
        share = f"{(counts[0] + counts[3]) / sum(counts):.4f}" if sum(counts) else ""
        yield f"| {first} | {second} | {' | '.join(map(str, counts))} | {share} |"
    yield ""
    yield from _disagreements(graders, rows, examples)


def _disagreements(
    graders: Sequence[str], rows: Sequence[Row], examples: int | None
) -> Iterator[str]:
    """Yield tables of the responses on which the first grader and another differ."""
    first, *others = graders
    groups: dict[tuple[str, str], list[str]] = {}
    for grader, why, line in (each for row in rows for each in _differences(row, first, others)):
        groups.setdefault((grader, why), []).append(line)
    ordered = sorted(groups.items())
    yield f"Responses on which {first} and another grader differ:"
    yield ""
    yield "| grader | reason | responses |"
    yield "| --- | --- | --- |"
    yield from (
        f"| {grader} | {why or 'not known'} | {len(own)} |" for (grader, why), own in ordered
    )
    yield ""
    yield f"| response | reference | {first} reads | grader | reads | right | reason |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    yield from (line for _, own in ordered for line in own[:examples])
    yield ""


def _differences(row: Row, first: str, others: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (grader, reason, line of the table) for each grader that differs from the first."""
    mine = row["verdicts"].get(first)
    for grader in others:
        theirs = row["verdicts"].get(grader)
        if not mine or not theirs or None in (mine["right"], theirs["right"]):
            continue
        if mine["right"] != theirs["right"]:
            judged = (row["text"], theirs["answer"], row["reference"], theirs["right"])
            why = reason(grader, *judged)
            cells = [row["response"], row["reference"], mine["answer"], grader, theirs["answer"]]
            cells += ["yes" if theirs["right"] else "no", why]
            yield grader, why, "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(value: str | None, longest: int = 60) -> str:
    text = "(none)" if value is None else " ".join(value.split()).replace("|", r"\|")
    return text if len(text) <= longest * 2 else f"{text[:longest]} ... {text[-longest:]}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("responses", type=Path, help="responses with verdicts, as JSONL")
    parser.add_argument("--program", choices=PROGRAMS, help="whose graders to add, if any")
    parser.add_argument("--out", type=Path, help="write the responses with all verdicts there")
    parser.add_argument(
        "--examples", type=int, help="list N disagreements of a kind (default: all)"
    )
    given = parser.parse_args(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is fetched
    rows = [json.loads(line) for line in given.responses.read_text().split("\n") if line]
    if given.program:
        judge(rows, given.program)
    if given.out:
        given.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print("\n".join(summary(rows, given.examples)))


if __name__ == "__main__":
    main()
