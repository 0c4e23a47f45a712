"""What autograd itself says it saves, and what torch's own counter counts, against ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from weakref import WeakSet

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

import torchperf
from torchperf.frontend.capture import capture
from torchperf.frontend.meta_device import everything_on_meta
from torchperf.frontend.patches import capture_patches
from torchperf.frontend.subject import Subject, find_loss, tensors_in
from torchperf.graph.graph import Graph
from torchperf.pipeline import annotated
from torchperf.schedule import memory

SAVING = ("llama", "gpt2", "qwen3-moe", "deepseek-v3", "bert", "t5", "vit", "nano-gpt", "transformer-encoder", "resnet")


class Packed:
    """What autograd keeps in place of a tensor; it goes when the branch that wants no gradient goes."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def saved_by_autograd(subject: Subject, sizes: dict[str, int]) -> list[int]:
    """Bytes of each storage that autograd holds after forward, but for parameters, buffers, inputs and outputs.

    One scalar comes on top: the gradient of the loss by itself, which starts backward and is made before it.
    """
    module = subject.module.train()
    args, kwargs = subject.arguments(sizes)
    packed: WeakSet[Packed] = WeakSet()

    def pack(tensor: torch.Tensor) -> Packed:
        packed.add(kept := Packed(tensor))
        return kept

    with capture_patches(), everything_on_meta(), saved_tensors_hooks(pack, lambda kept: kept.tensor):
        outputs = module(*args, **kwargs)
        loss, _ = find_loss(outputs)
    held = tensors_in(dict(outputs) if hasattr(outputs, "items") else outputs)
    known = [*module.parameters(), *module.buffers(), *tensors_in((*args, kwargs)).values(), *held.values(), loss]
    storages = {s._cdata: s.nbytes() for s in (kept.tensor.untyped_storage() for kept in packed)}
    for tensor in known:
        storages.pop(tensor.untyped_storage()._cdata, None)
    return sorted([*storages.values(), loss.untyped_storage().nbytes()])


def saved_by_us(graph: Graph) -> list[int]:
    """The same from the recorded program: storages made in forward that backward reads."""
    inputs = {
        storage
        for segment in graph.segments
        for slot, storage in enumerate(segment.storages)
        if graph.blocks[segment.block].storages[slot].kind == "input"
    }
    lives = memory.saved(graph, annotated(graph))
    return sorted(life.nbytes for storage, life in lives.items() if storage not in inputs)


@pytest.mark.parametrize("saving", SAVING)
def test_saved_tensors(family: Callable[[str], Subject], saving: str) -> None:
    """Unique storages, one by one: the same multiset of sizes."""
    subject = family(saving)
    sizes = {"batch": 2, **({"seq": 72} if "seq" in subject.sizes else {})}
    expected = saved_by_autograd(subject, sizes)
    graph = capture(replace(subject, fixed="one size"), "train", sizes).bind(**sizes)
    ours = saved_by_us(graph)
    assert Counter(ours) == Counter(expected)
    assert sum(ours) == sum(expected)


class Mlp(nn.Module):
    """Dense layers, whose matmuls torch's counter knows."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(48, 112), nn.GELU(), nn.Linear(112, 48)
        self.conv = nn.Conv1d(48, 24, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.softmax(x @ x.transpose(1, 2), -1)
        return self.conv(self.down(self.act(self.up(scores @ x))).transpose(1, 2))


@pytest.mark.parametrize("needs_input_grad", [True, False])
def test_flops_of_torch(needs_input_grad: bool) -> None:
    """Matmuls, batched matmuls and a convolution, forward and backward, with and without the input's gradient."""
    with torch.device("meta"):
        module = Mlp()
        inputs = torch.empty(4, 40, 48, requires_grad=needs_input_grad)
        with FlopCounterMode(display=False) as counter:
            module(inputs).sum().backward()
    ours = torchperf.estimate(torchperf.capture(module, inputs), gpu="t4", precision="fp16-mixed")
    assert ours.flops.model == counter.get_total_flops()
    assert ours.flops == ours.flops_noncausal


@pytest.mark.parametrize("dense", ["bert", "vit", "resnet", "nano-gpt"])
def test_flops_of_torch_on_whole_models(family: Callable[[str], Subject], dense: str) -> None:
    """Forward and backward of whole models whose attention is written in matmuls, at the counter's own formulas."""
    subject = family(dense)
    if hasattr(subject.module, "set_attn_implementation"):
        subject.module.set_attn_implementation("eager")
    sizes = {"batch": 2, **({"seq": 72} if "seq" in subject.sizes else {})}
    graph = capture(replace(subject, fixed="one size"), "train", sizes).bind(**sizes)
    ours = sum(
        count * work.flops
        for count, row in zip(graph.counts, annotated(graph), strict=True)
        for work in row
        if work.engine == "matrix"
    )
    args, kwargs = subject.arguments(sizes)
    with capture_patches(), everything_on_meta(), FlopCounterMode(display=False) as counter:
        find_loss(subject.module.train()(*args, **kwargs))[0].backward()
    assert ours == counter.get_total_flops()
