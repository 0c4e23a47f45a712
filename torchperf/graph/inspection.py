"""The other answers: what `inspect` and `mfu` say of a model. Seconds, bytes and FLOPs throughout."""

from __future__ import annotations

from dataclasses import dataclass

from .estimate import Mfu


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One module of the model with all that lies below it; `*` stands for the index of a folded layer.

    calls             how many modules the row stands for (32 for `model.layers.*`)
    nbytes            read and written in forward and backward, summed over the calls
    activation_bytes  storages made in forward that backward reads, summed over the calls
    """

    module: str
    calls: int
    parameters: int
    flops_forward: int
    flops_backward: int
    nbytes: int
    activation_bytes: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a model is, before any hardware. The first row may be the whole model, with module ""."""

    model: str
    model_class: str
    mode: str
    sizes: tuple[tuple[str, int], ...]
    parameters: int
    trainable_parameters: int
    rows: tuple[ModuleRow, ...]
    guesses: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MfuReport:
    """Utilisation of a measured run in each convention, and what a number of tokens costs at its rate.

    parameters_input_embedding  of `parameters`, those of the token embedding; 0 where tied to the head
    tokens_per_s_per_gpu        given, or tokens / (wall_s * num_gpus)
    tokens                      of the run, over all GPUs
    wall_s                      measured seconds of the run; None where the rate was given
    price_per_gpu_hour          dollars
    goodput                     share of the wall time in steps that count; a measured `wall_s` holds it
    """

    model: str
    gpu: str
    num_gpus: int
    precision: str
    parameters: int
    parameters_input_embedding: int
    seq_len: int | None
    tokens_per_s_per_gpu: float
    peak_flops_per_s: float
    mfu: tuple[Mfu, ...]
    hfu: tuple[Mfu, ...] = ()
    tokens: int | None = None
    wall_s: float | None = None
    price_per_gpu_hour: float | None = None
    goodput: float = 1.0
    assumptions: tuple[str, ...] = ()

    @property
    def seconds(self) -> float | None:
        """Wall time of `tokens`: as measured, or tokens / (rate * GPUs * goodput); None without tokens."""
        if self.wall_s is not None:
            return self.wall_s
        if self.tokens is None:
            return None
        return self.tokens / (self.tokens_per_s_per_gpu * self.num_gpus * self.goodput)

    @property
    def days(self) -> float | None:
        return None if self.seconds is None else self.seconds / 86400

    @property
    def gpu_hours(self) -> float | None:
        return None if self.seconds is None else self.seconds * self.num_gpus / 3600

    @property
    def dollars(self) -> float | None:
        """GPU-hours at the price; None without a price or without tokens."""
        if self.gpu_hours is None or self.price_per_gpu_hour is None:
            return None
        return self.gpu_hours * self.price_per_gpu_hour
