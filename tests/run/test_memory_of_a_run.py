from __future__ import annotations

import pytest

from mugrpo.config.load import build_config
from mugrpo.disk.errors import UsageError
from mugrpo.run.memory import GIB, require_memory
from tests.runs import ROOT

HALF_A_BILLION = {
    "path": str(ROOT / "configs" / "recipes" / "forms" / "qwen2.5-0.5b"),
    "precision": "fp32",
}


def test_weights_gradients_and_moments_that_do_not_fit_are_refused(
    monkeypatch: pytest.MonkeyPatch,
):
    """494 million parameters take 16 bytes each: 7.4 GiB. Under an adapter they take 4."""
    monkeypatch.setattr("mugrpo.run.memory.host_memory", lambda: 7 * GIB)
    with pytest.raises(UsageError, match=r"take 7\.4 GiB of memory, which has 7\.0: .*lora\.rank"):
        require_memory(build_config({"model": HALF_A_BILLION}, "test"))
    require_memory(build_config({"model": HALF_A_BILLION, "lora": {"rank": 8}}, "test"))
    monkeypatch.setattr("mugrpo.run.memory.host_memory", lambda: 8 * GIB)
    require_memory(build_config({"model": HALF_A_BILLION}, "test"))
