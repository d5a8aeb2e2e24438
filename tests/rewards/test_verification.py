"""verification.toml, the table of what counts as equal."""

from __future__ import annotations

import tomllib
from pathlib import Path

from mugrpo.rewards.math.mathematics import Mathematics
from mugrpo.rewards.math.notation import RULES, normal
from tests.cases import table

MATH = Mathematics()
SECTIONS = tomllib.loads((Path(__file__).parent / "verification.toml").read_text())["section"]
CASES = [
    (row["reference"], answer if section.get("texts") else rf"\boxed{{{answer}}}", right)
    for section in SECTIONS
    for row in section["rows"]
    for key, right in (("right", True), ("wrong", False))
    for answer in row.get(key, [])
]


@table(("reference", "text", "right"), CASES)
def test_verdicts(reference, text, right):
    assert MATH(text, reference).right is right


@table("reference", sorted({reference for reference, _, _ in CASES}))
def test_each_reference_is_an_answer_to_itself(reference):
    text = reference if r"\boxed" in reference else rf"\boxed{{{reference}}}"
    assert MATH(text, reference).right


@table("rule", RULES)
def test_each_rule_rewrites_its_example_and_no_other_rule_does(rule, monkeypatch):
    assert normal(rule.written) == rule.becomes
    others = [other for other in RULES if other is not rule]
    monkeypatch.setattr("mugrpo.rewards.math.notation.RULES", others)
    assert normal(rule.written) != rule.becomes


@table("rule", RULES)
def test_what_is_in_the_one_notation_stays_as_it_is(rule):
    assert normal(rule.becomes) == rule.becomes
