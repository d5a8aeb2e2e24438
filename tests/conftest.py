"""Fixtures that many tests share. Policies with session scope must not be trained."""

import os

import pytest
import torch

from mugrpo.config.run import ModelOptions
from mugrpo.model.policy import Policy, load_policy
from mugrpo.optimize.experience import Experience
from tests.builders import TINY_FORMS, sampled_experience, tiny_policy
from tests.cases import some

pytest_plugins = ["tests.run_fixtures"]

# Claims about bits and bounds are those of fp32 on a CPU, also on a machine with GPUs.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
torch.set_num_threads(1)  # the models are tiny
os.getloadavg = lambda: (0.0, 0.0, 0.0)  # runs say nothing of a busy machine


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep approvals of code out of the home of whoever runs the tests, in processes too."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in which sandboxes hostile programs ran, if their test did."""
    stats, test = terminalreporter.stats, "test_hostile_programs_are_wrong"
    asked = [r for name in ("passed", "failed", "skipped") for r in stats.get(name, [])]
    if any(test in report.nodeid for report in asked):
        ran = [r.nodeid.partition("[")[2][:-1] for r in stats.get("passed", []) if test in r.nodeid]
        terminalreporter.write_line(f"hostile programs ran in {' and '.join(ran) or 'no sandbox'}")


@pytest.fixture(scope="session")
def embedded_policy() -> Policy:
    return load_policy(ModelOptions())


@pytest.fixture(
    scope="session", params=some(2, ["chain", "gpt2", *sorted({*TINY_FORMS} - {"gpt2"})])
)
def any_policy(request: pytest.FixtureRequest) -> Policy:
    """The embedded model, and a random model of each tiny form; two of them in `make test`."""
    if request.param == "chain":
        return load_policy(ModelOptions())
    return tiny_policy(request.param)


@pytest.fixture(scope="session")
def experience(embedded_policy: Policy) -> Experience:
    """Four groups of four responses of unequal lengths, sampled from the embedded model."""
    return sampled_experience(embedded_policy)
