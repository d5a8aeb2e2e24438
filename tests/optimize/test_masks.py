"""What masks remove, and that they remove nothing else; Mu-GRPO as composed by UpdateLoss."""

import torch

from mugrpo.optimize.masks import negative_advantage_veto, off_policy
from tests.cases import table

SCOPES = ("suffix", "trigger", "post_trigger", "from_trigger", "response")
THRESHOLD = torch.tensor(0.1, dtype=torch.float64).log().exp().item()  # rounded as a ratio is

# Ratios of one response, and the tokens that each of SCOPES removes (x) where A < 0.
ROWS = {
    # T = {1, 3}, tau = 1
    "several triggers": ([0.5, 0.05, 0.9, 0.01, 2.0], "..x.x .x.x. ..xxx .xxxx xxxxx"),
    "trigger at the first token": ([0.05, 0.5, 0.9], ".xx x.. .xx xxx xxx"),
    "trigger at the last token": ([0.5, 0.9, 0.05], "... ..x ... ..x xxx"),
    "no trigger": ([0.5, 0.9, 9.0], "... ... ... ... ..."),
    "ratio exactly the threshold": ([THRESHOLD, 0.9, 2.0], "... ... ... ... ..."),
}


def removed(ratios: list[float], advantage: float, scope: str) -> str:
    """The tokens of one response that the veto removes, as in ROWS."""
    log_ratios = torch.tensor([ratios], dtype=torch.float64).log()
    mask = torch.ones(1, len(ratios), dtype=torch.bool)
    given = (log_ratios, torch.zeros_like(log_ratios), torch.tensor([advantage]), mask)
    vetoed = negative_advantage_veto(*given, threshold=THRESHOLD, scope=scope)
    return "".join("x" if token else "." for token in vetoed[0].tolist())


@table("row", ROWS)
def test_tokens_that_each_scope_removes(row):
    ratios, expected = ROWS[row]
    assert [removed(ratios, -1.0, scope) for scope in SCOPES] == expected.split()


@table("scope", SCOPES)
@table("advantage", [1.0, 0.0])
def test_responses_without_negative_advantage_are_never_touched(scope, advantage):
    assert removed([0.05, 0.9, 0.01, 2.0], advantage, scope) == "...."


def moved(log_ratios: list[list[float]], advantages: list[float], delta: float) -> list[list[bool]]:
    log_ratio_BT = torch.tensor(log_ratios, dtype=torch.float64)
    mask = torch.ones(log_ratio_BT.shape, dtype=torch.bool)
    mask[:, -1] = False  # the last token is padding
    return off_policy(
        log_ratio_BT, torch.zeros_like(log_ratio_BT), torch.tensor(advantages), mask, delta=delta
    ).tolist()


def test_responses_that_the_policy_left_are_removed_if_the_advantage_is_negative():
    # mean of -log r without padding: .75, .5, .75, -2
    rows = [[-1.0, -0.5, 9.0], [-0.75, -0.25, -9.0], [-1.0, -0.5, -9.0], [2.0, 2.0, -9.0]]
    nothing, whole = [False] * 3, [True, True, False]
    assert moved(rows, [-1.0, -1.0, 1.0, -1.0], 0.5) == [whole, nothing, nothing, nothing]
    assert moved(rows, [-1.0, -1.0, 1.0, -1.0], 0.49) == [whole, whole, nothing, nothing]
    assert moved(rows, [0.0, -1.0, -1.0, -1.0], 0.6) == [nothing, nothing, whole, nothing]
