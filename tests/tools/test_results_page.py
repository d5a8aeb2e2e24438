"""The tables of docs/results.md: verdicts by hand, and the page is what the rows say."""

import runpy
from typing import Any

import pytest

from mugrpo.report.readable import MINUS
from tests.cases import table
from tests.runs import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "results_page.py"))


def rows(arm: str, accuracies: list[float], best: float = 0.9, seconds: float = 10.0) -> list[Any]:
    return [
        {"axis/arm": arm, "seed": s, "accuracy": a, "best": best, "training_seconds": seconds}
        for s, a in enumerate(accuracies)
    ]


def checked(ours: list[Any], theirs: list[Any], expects: str) -> Any:
    case = {"arm": {"arm": "ours"}, "other": {"arm": "theirs"}}
    return SCRIPT["checked"]([*ours, *theirs], case, expects)


def test_the_pages_are_what_the_rows_say():
    for file, text in SCRIPT["pages"]().items():
        assert file.read_text() == text, "run python scripts/results_page.py"


@table(
    ("ours", "expects", "verdict"),
    [
        # differences of -.1, -.1, -.1: no width
        ([0.6, 0.7, 0.8], "below", "agrees"),
        ([0.6, 0.7, 0.8], "near", "does not"),
        # -.01: within .02, and below
        ([0.69, 0.79, 0.89], "near", "agrees"),
        ([0.69, 0.79, 0.89], "below", "agrees"),
        # 0, -.1, -.2: -.1 with 4.303 x .1 / sqrt 3 = .248 on either side
        ([0.7, 0.7, 0.7], "below", "undecided"),
        ([0.7, 0.7, 0.7], "near", "undecided"),
        ([0.8, 0.9, 1.0], "below", "does not"),
        ([0.6], "below", "undecided"),  # one seed
    ],
)
def test_a_difference_needs_its_whole_interval(ours, expects, verdict):
    seeds, here, found = checked(rows("ours", ours), rows("theirs", [0.7, 0.8, 0.9]), expects)
    assert (seeds, found) == (len(ours), verdict)
    if ours == [0.7, 0.7, 0.7]:
        assert here == f"{MINUS}0.100 ± 0.248"


@table(
    ("accuracies", "expects", "verdict"),
    [
        ([0.1, 0.44], "collapse", "agrees"),
        ([0.1, 0.44], "none", "does not"),
        ([0.1, 0.46], "collapse", "undecided"),
        ([0.5, 0.46], "collapse", "does not"),
        ([0.5, 0.46], "none", "agrees"),
        ([0.1], "collapse", "undecided"),
    ],
)
def test_a_collapse_is_an_end_below_half_of_the_best(accuracies, expects, verdict):
    fell = sum(a < 0.45 for a in accuracies)
    expected = (len(accuracies), f"{fell} of {len(accuracies)} collapse", verdict)
    assert checked(rows("ours", accuracies), [], expects) == expected


@pytest.mark.parametrize(("seconds", "verdict"), [(8.0, "agrees"), (9.0, "does not")])
def test_faster_is_by_the_papers_least(seconds, verdict):
    """10 / 8 = 1.25 and 10 / 9 = 1.11, of 1.21; each pair alike, so without a width."""
    ours, theirs = rows("ours", [0.5, 0.5], seconds=seconds), rows("theirs", [0.5, 0.5])
    _, here, found = checked(ours, theirs, "faster")
    assert found == verdict and here.startswith(f"{10 / seconds:.2f} times as fast")
