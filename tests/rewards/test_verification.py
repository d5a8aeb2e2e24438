"""verification.toml, the table of what counts as equal: both graders, and its page in docs."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path

from mugrpo.rewards.math.mathematics import Mathematics
from mugrpo.rewards.math.notation import RULES, normal
from mugrpo.rewards.math.plain import plain
from tests.cases import table
from tests.runs import ROOT

MATH = Mathematics()
SECTIONS = tomllib.loads((Path(__file__).parent / "verification.toml").read_text())["section"]
VERDICTS = {"right": (True, True), "wrong": (False, False), "math": (True, False)}
VERDICTS["plain"] = (False, True)
CASES = [
    (row["reference"], answer if section.get("texts") else rf"\boxed{{{answer}}}", verdicts)
    for section in SECTIONS
    for row in section["rows"]
    for key, verdicts in VERDICTS.items()
    for answer in row.get(key, [])
]


@table(("reference", "text", "verdicts"), CASES)
def test_verdicts_of_both_graders(reference, text, verdicts):
    assert (MATH(text, reference).right, plain(text, reference).right) == verdicts


@table("reference", sorted({reference for reference, _, _ in CASES}))
def test_each_reference_is_an_answer_to_itself(reference):
    text = reference if r"\boxed" in reference else rf"\boxed{{{reference}}}"
    assert MATH(text, reference).right and plain(text, reference).right


@table("rule", RULES)
def test_each_rule_rewrites_its_example_and_no_other_rule_does(rule, monkeypatch):
    assert normal(rule.written) == rule.becomes
    others = [other for other in RULES if other is not rule]
    monkeypatch.setattr("mugrpo.rewards.math.notation.RULES", others)
    assert normal(rule.written) != rule.becomes


@table("rule", RULES)
def test_what_is_in_the_one_notation_stays_as_it_is(rule):
    assert normal(rule.becomes) == rule.becomes


def test_the_page_shows_the_table():
    script = runpy.run_path(str(ROOT / "scripts" / "verification_page.py"))
    text = script["PAGE"].read_text()
    assert script["page"](text) == text, "run python scripts/verification_page.py"
