"""What we say of one measured training run: seconds of a step, and bytes of the most loaded device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .. import hardware, pipeline
from ..frontend.modules.spec import capture_of
from ..graph.system import System
from ..local_program import How
from ..price.roofline import roofline
from ..rank_memory import most_loaded, rank_memory
from ..rewrite.precision import precision
from ..step import Planner
from .training_rows import TrainingCase


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds, and bytes by what they count: `allocated` by tensors, `reserved` by the allocator, `device` in all.

    roofline_s   seconds at full peak and bandwidth; None where it is not asked for
    """

    step_time_s: float
    allocated: float
    reserved: float
    device: float
    roofline_s: float | None = None

    def memory(self, kind: str) -> float:
        """The bytes that a clock of that kind shows."""
        return {"allocated": self.allocated, "reserved": self.reserved, "device": self.device}[kind]


Predict = Callable[[TrainingCase], Prediction]


class Predictor:
    """Prices cases. What cases in a row share is kept: the planner of the last model, system and runtime."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._planner: Planner | None = None

    def __call__(self, case: TrainingCase) -> Prediction:
        """The prediction; raises TorchperfError where the pipeline cannot run the case."""
        planner = self._planner_of(case)
        step = planner.step(case.plan)
        runtime, device = planner.runtime, planner.system.accelerator
        how = (precision(case.precision), case.optimizer, runtime, device.memory.usable.value)
        stage = {"first": 0, "last": len(step.rank_of) - 1}.get(case.memory_of)
        used = most_loaded(step, *how) if stage is None else rank_memory(step, stage, *how)
        reserved = used.device - runtime.reserve.value
        plain = sum(count * roofline(work, device) for count, _, work, _ in step.rows)
        return Prediction(step.seconds, used.peak, reserved, used.device, plain)

    def _planner_of(self, case: TrainingCase) -> Planner:
        key = planner_key(case)
        if self._planner is None or self._key != key:
            self._planner, self._key = _planner(case), key
        return self._planner


def planner_key(case: TrainingCase) -> tuple[object, ...]:
    """What cases of one planner have in common; a sort key that brings them together."""
    return (
        case.model.name, case.model.config, case.model.mtp, case.seq_len, case.plan.micro_batch, case.gpu, case.system,
        case.gpus_per_node, case.network, case.nics_per_node, case.runtime, case.precision, case.attention,
        case.optimizer,
    )  # fmt: skip


def system_of(case: TrainingCase) -> System:
    """The nodes of a case: the database's, with the GPUs of a node and the network that its source names."""
    system = hardware.load_system(case.system) if case.system else hardware.single(hardware.load_accelerator(case.gpu))
    if case.gpus_per_node and case.system:
        per_node = system.accelerators_per_node
        ports = system.nics_per_node
        share = case.gpus_per_node / per_node.value
        system = replace(
            system,
            accelerators_per_node=replace(per_node, value=float(case.gpus_per_node)),
            nics_per_node=replace(ports, value=max(1.0, ports.value * share)),
        )
    if case.network:
        system = replace(system, scale_out=hardware.load_interconnect(case.network))
    if case.nics_per_node:
        system = replace(system, nics_per_node=replace(system.nics_per_node, value=case.nics_per_node))
    return system


def _planner(case: TrainingCase) -> Planner:
    runtime = hardware.load_runtime(case.runtime)
    system = system_of(case)
    seq, batch = case.seq_len, case.plan.micro_batch
    capture = capture_of(case.model, batch=batch, seq=seq)
    how = How(case.precision, case.optimizer, case.attention)
    return pipeline.planner_of(capture, capture.bind(batch=batch, seq=seq), "train", system, runtime, how)
