"""Machines: what they can do each second, each number with its source. Small TOML files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mugrpo.config.base import Options
from mugrpo.config.load import read_toml, validated
from mugrpo.config.run import ModelOptions, RunConfig
from mugrpo.disk.errors import UsageError

MACHINES = Path(__file__).with_name("machines")
_Peak = Annotated[float, Field(gt=0)]
_Share = Annotated[float, Field(gt=0, le=1)]
_Seconds = Annotated[float, Field(ge=0)]


class Rates(Options):
    """The most that a device can do each second: operations, or bytes."""

    fp32: _Peak
    """Operations in fp32. A multiplication and an addition are two."""
    bf16: _Peak
    """Operations in bf16."""
    memory: _Peak
    """Bytes of the device's memory."""
    link: _Peak
    """Bytes that a device sends to the others of its machine."""
    network: _Peak
    """Bytes that a device sends to other machines."""
    disk: _Peak
    """Bytes that the whole machine writes to disk, or reads."""


class Shares(Options):
    """The share of a rate that programs reach."""

    decode: _Share
    """Of operations, in decode steps and prefill."""
    update: _Share
    """Of operations, in forward and backward passes of an update."""
    memory: _Share
    """Of memory's bytes."""
    link: _Share
    """Of link's and network's bytes."""


class Overheads(Options):
    """Seconds that no rate explains."""

    step: _Seconds
    """Of each decode step."""
    sequence: _Seconds
    """Of each sequence in a decode step."""
    request: _Seconds
    """Of each request: its prompt's prefill, and what begins and ends it."""
    micro_batch: _Seconds
    """Of each micro-batch of an update."""
    update: _Seconds
    """Of each update."""
    refresh: _Seconds
    """Of each refresh: sleeping and waking, and the canary."""
    start: _Seconds
    """Of the start of an engine outside the trainer's process, once in a run."""
    score: _Seconds
    """Of each response that is judged."""


class Machine(Options):
    """A machine with equal devices (GPUs, or one CPU), or several such machines."""

    name: str
    """Its name."""
    kind: Literal["gpu", "cpu"]
    """What computes."""
    devices: int = Field(ge=1)
    """Devices in all."""
    per_machine: int = Field(ge=1)
    """Devices of one machine, which `link` connects."""
    memory_gib: _Peak
    """Memory of a device. A CPU's is the host's."""
    rates: Rates
    """What a device can do each second."""
    shares: Shares
    """How much of that programs reach."""
    overheads: Overheads
    """What takes time beside it."""
    sources: dict[str, str]
    """Where each number is from, by its dotted name, or by the name of its table."""

    @model_validator(mode="after")
    def _every_number_has_a_source(self) -> Self:
        tables: dict[str, type[Options]] = {}
        tables |= {"rates": Rates, "shares": Shares, "overheads": Overheads}
        names = [f"{table}.{name}" for table in tables for name in tables[table].model_fields]
        for name in (*names, "memory_gib"):
            if not (self.sources.get(name) or self.sources.get(name.partition(".")[0])):
                raise ValueError(f"{name} has no source; add one under [sources]")
        return self

    @property
    def usable(self) -> float:
        """Return the bytes of a device that a program can use: nine tenths."""
        return 0.9 * self.memory_gib * 2**30

    def precision_of(self, options: ModelOptions) -> str:
        """Return the model's precision there, as `model.hardware.precision_of` does here."""
        if options.precision != "auto":
            return options.precision
        return "bf16" if self.kind == "gpu" and self.rates.bf16 > self.rates.fp32 else "fp32"

    def settled(self, config: RunConfig) -> RunConfig:
        """Return `config` with the precision that "auto" is there."""
        model = config.model.model_copy(update={"precision": self.precision_of(config.model)})
        return config.model_copy(update={"model": model})

    def operations(self, precision: str) -> float:
        """Return a device's operations each second in "fp32" or "bf16"."""
        return self.rates.bf16 if precision == "bf16" else self.rates.fp32


def names() -> list[str]:
    """Return the names of the machines that the package knows."""
    return sorted(file.stem for file in MACHINES.glob("*.toml"))


def load_machine(name: str) -> Machine:
    """Return the machine of a name or of a TOML file.

    A name that begins with a number and an x, as in 64xH200, is the known machine with the same
    devices (8xH200), with that number of them. Raises UsageError if there is no such machine, or a
    number or its source is missing.
    """
    if name.endswith(".toml"):
        return validated(Machine, read_toml(Path(name)), name)
    if name in names():
        return validated(Machine, read_toml(MACHINES / f"{name}.toml"), name)
    count, _, device = name.partition("x")
    for known in names():
        if count.isdigit() and int(count) and known.partition("x")[2] == device != "":
            return load_machine(known).model_copy(update={"devices": int(count)})
    raise UsageError(
        f"--machine {name}: there is no such machine; choose among {', '.join(names())} (with any "
        "number before the x), or name a TOML file of your own"
    )
