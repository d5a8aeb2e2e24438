"""Bytes worked out by hand for models of known shapes."""

import pytest

from mugrpo.config.run import ModelOptions
from mugrpo.model.loading import model_config
from mugrpo.model.sizes import Widths, cache_bytes, slots_that_fit, widths_of
from tests.runs import ROOT

FORMS = ROOT / "configs" / "recipes" / "forms"


def widths(name: str) -> Widths:
    return widths_of(model_config(ModelOptions(path=str(FORMS / name))))


def test_the_widths_of_qwens_models():
    """14 heads of 64, and 2 of keys and as many of values; 28 heads of 128, and 4 of each."""
    assert widths("qwen2.5-0.5b") == (24, 896, 896, 256, 4864, 151936)
    assert widths("qwen2.5-7b") == (28, 3584, 3584, 1024, 18944, 152064)
    assert cache_bytes(widths("qwen2.5-0.5b"), 2) == 24 * 256 * 2 == 12_288


@pytest.mark.parametrize(
    ("free", "slots"),
    [
        (0, 1),  # an engine tries one, whatever is free
        (55_229_439, 1),
        (55_229_440, 2),  # of 2 x 1,000 x 12,288 B of cache and 20 x 151,936 B of logits
        (64 * 27_614_720, 64),
        (127 * 27_614_720, 64),
        (128 * 27_614_720, 128),
        (40 << 30, 1536),  # 1,555
        (80 << 30, 2048),  # 3,110
    ],
)
def test_slots_that_fit(free, slots):
    assert slots_that_fit(free, 1000, 12_288, 151_936) == slots
