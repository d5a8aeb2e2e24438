"""Machine files: every number is there, with its source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mugrpo.config.load import build_config
from mugrpo.disk.errors import UsageError
from mugrpo.extensions.lab.plan.counts import Shape
from mugrpo.extensions.lab.plan.generation import EnginePrices
from mugrpo.extensions.lab.plan.machine import load_machine, names


@pytest.mark.parametrize("name", names())
def test_known_machines_load_and_name_their_sources(name: str):
    machine = load_machine(name)
    assert machine.name == name and machine.devices == int(name.partition("x")[0])


def test_any_number_of_a_known_device():
    machine = load_machine("64xH200")
    assert (machine.devices, machine.per_machine) == (64, 8)
    assert machine.rates == load_machine("8xH200").rates


@pytest.mark.parametrize("name", ["8xH300", "0xH200"])
def test_an_unknown_machine_is_refused_with_the_known_ones(name: str):
    with pytest.raises(UsageError, match=r"choose among .*8xH200.*"):
        load_machine(name)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("memory = 4.8e+12", "", "rates.memory must be given"),
        ("memory = 4.8e+12", "memory = 0.0", "rates.memory = 0.0: input should be greater than 0"),
        ("update = 0.35", "update = 1.5", "shares.update = 1.5: input should be less than or"),
        ('"rates.link"', '"rates.other"', "rates.link has no source; add one under"),
        ("step = 0.002", "stepp = 0.002", "there is no option overheads.stepp"),
        ("devices = 8", "devices = ", "8xH200.toml"),
    ],
)
def test_a_faulty_file_is_refused(tmp_path: Path, old: str, new: str, sentence: str):
    import mugrpo.extensions.lab.plan.machine as known

    text = (Path(known.__file__).with_name("machines") / "8xH200.toml").read_text()
    assert old in text
    file = tmp_path / "8xH200.toml"
    file.write_text(text.replace(old, new))
    with pytest.raises(UsageError) as error:
        load_machine(str(file))
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("name", "bf16", "settled"),
    [("1xH100", 3e12, "bf16"), ("1xH100", 1e12, "fp32"), ("1xCPU", 3e12, "fp32")],
)
def test_auto_is_bf16_on_gpus_that_are_faster_in_it(name, bf16, settled):
    known = load_machine(name)
    rates = known.rates.model_copy(update={"fp32": 2e12, "bf16": bf16})
    machine = known.model_copy(update={"rates": rates})
    config = build_config({"model": {"precision": "auto"}}, "test")
    assert machine.settled(config).model.precision == settled
    named = build_config({"model": {"precision": "fp32"}}, "test")
    assert machine.settled(named) == named


def test_an_a100_decodes_as_fast_as_was_reported_for_one_request():
    """75 tokens a second of Llama 3.1 8B, after 1,024 tokens (see the file's sources)."""
    shape = Shape(4096, 32, 32, 8, 128, 14336, 128256, False)
    prices = EnginePrices(shape, load_machine("1xA100-40GB"), "bf16")
    [seconds] = prices.step(np.array([1]), np.array([1088.0]))
    assert 1 / seconds == pytest.approx(75, rel=0.05)
