"""The fixture `case` of the tests of faults."""

from pathlib import Path
from typing import Any

import pytest

from mugrpo.model import policy
from tests.faults.case import Case
from tests.runs import Command


@pytest.fixture
def case(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> Case:
    loads: list[str] = []
    load = policy.load_model

    def noted(path: str | Path, *how: Any) -> Any:
        loads.append(str(path))
        return load(path, *how)

    monkeypatch.setattr(policy, "load_model", noted)
    return Case(tmp_path, command, loads)
