"""Models that are no causal language models: every family runs forward and backward, and nothing of it is lost.

Nothing lost means: no op unattributed or without a rule, a gradient for every parameter but those named, and at least
the FLOPs that the linear and convolution modules make by the size of their weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchperf.annotate import works
from torchperf.frontend import user_file
from torchperf.frontend.capture import capture
from torchperf.frontend.live import subject_of_module
from torchperf.frontend.run import record
from torchperf.frontend.subject import Subject
from torchperf.graph.errors import TorchperfError
from torchperf.graph.graph import Capture, Graph

pytest.importorskip("transformers")
from torchperf.frontend import hf

ZOO = Path(__file__).parent / "zoo"
# of zoo/small.json: batch, sequence, width, feed-forward, vocabulary, layers
B, S, H, F, V, L = 2, 32, 64, 96, 128, 2
# model type -> head, config, and words of the parameters that this model leaves without a gradient
MODELS: dict[str, dict[str, Any]] = json.loads((ZOO / "small.json").read_text())


def subject_of(kind: str) -> Subject:
    small = MODELS[kind]
    return hf.from_config({"model_type": kind, "architectures": [small["head"]], **small["config"]}, kind)


def graph_of(subject: Subject, **sizes: int) -> Graph:
    """The training step at one point, sizes not asked for at their default."""
    subject.fixed = "one size is enough for this test"
    wanted = {name: sizes.get(name, default) for name, default in subject.sizes.items()}
    return capture(subject, "train", wanted).bind(**wanted)


def matrix_flops(graph: Graph, *phases: str, kinds: tuple[str, ...] = ("matmul", "convolution", "attention")) -> int:
    """Multiply-adds counted two, attention without the causal triangle."""
    rows = zip(graph.blocks, graph.counts, works(graph), strict=True)
    return sum(
        count * work.flops_noncausal
        for block, count, row in rows
        if block.phase in phases
        for work in row
        if work.engine == "matrix" and work.kind in kinds
    )


def module_flops(subject: Subject, sizes: dict[str, int]) -> int:
    """FLOPs of all calls of linear and convolution modules: weights times rows of the output."""
    total = 0

    def count(module: nn.Module, _inputs: Any, output: Any) -> None:
        nonlocal total
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)) and isinstance(output, torch.Tensor):
            total += 2 * module.weight.numel() * (output.numel() // module.weight.shape[0])

    handle = nn.modules.module.register_module_forward_hook(count)
    try:
        record(subject, sizes, "train")
    finally:
        handle.remove()
    return total


@pytest.mark.parametrize("kind", MODELS)
def test_nothing_is_lost(kind: str) -> None:
    subject = subject_of(kind)
    sizes = {**subject.sizes, "batch": B, **({"seq": S} if "seq" in subject.sizes else {})}
    graph = graph_of(subject, **sizes)
    assert graph.facts.unattributed == 0
    unknown = {op.name for block, row in zip(graph.blocks, works(graph), strict=True)
               for op, work in zip(block.ops, row, strict=True) if not work.known}  # fmt: skip
    assert not unknown
    words = MODELS[kind]["without_gradient"]
    lost = [p.names[0] for p in graph.facts.parameters if not p.gradient and not any(w in p.names[0] for w in words)]
    assert not lost
    assert matrix_flops(graph, "forward") >= module_flops(subject, sizes) > 0
    assert matrix_flops(graph, "backward") > matrix_flops(graph, "forward")


def test_bert_exactly() -> None:
    """Projections, attention, the transform of the head and the head."""
    layer = 2 * B * S * (4 * H * H + 2 * H * F) + 4 * B * S * S * H
    assert matrix_flops(graph_of(subject_of("bert"), batch=B, seq=S), "forward") == L * layer + 2 * B * S * (
        H * H + H * V
    )


def test_t5_exactly() -> None:
    """An encoder layer has 4 projections and attention, a decoder layer twice that, each a feed-forward of two."""
    attention = 2 * B * S * 4 * H * H + 4 * B * S * S * H
    forward = 2 * B * S * 2 * H * F
    expected = L * (attention + forward) + L * (2 * attention + forward) + 2 * B * S * H * V
    assert matrix_flops(graph_of(subject_of("t5"), batch=B, seq=S), "forward") == expected


def test_vit_exactly() -> None:
    """16 patches and the class token; the head sees that token alone."""
    patches, labels = (32 // 8) ** 2, 2
    tokens = patches + 1
    layer = 2 * B * tokens * (4 * H * H + 2 * H * F) + 4 * B * tokens * tokens * H
    expected = 2 * B * patches * 3 * 8 * 8 * H + L * layer + 2 * B * H * labels
    assert matrix_flops(graph_of(subject_of("vit"), batch=B), "forward") == expected


# model type, head, and the 1e9 multiply-adds of one image of 224 x 224 ("GFLOPS" in torchvision's documentation of the
# model of that name); default configs with 1000 classes
PUBLISHED = [
    ("vit", "ViTForImageClassification", 17.56, "torchvision.models.vit_b_16"),
    ("resnet", "ResNetForImageClassification", 4.09, "torchvision.models.resnet50"),
    ("swin", "SwinForImageClassification", 4.49, "torchvision.models.swin_t"),
    ("convnext", "ConvNextForImageClassification", 4.46, "torchvision.models.convnext_tiny"),
    ("mobilenet_v2", "MobileNetV2ForImageClassification", 0.30, "torchvision.models.mobilenet_v2"),
]


@pytest.mark.parametrize(("kind", "head", "published", "source"), PUBLISHED)
def test_published_figures(kind: str, head: str, published: float, source: str) -> None:
    """As exactly as the figures are rounded."""
    subject = hf.from_config({"model_type": kind, "architectures": [head], "num_labels": 1000}, kind)
    ours = matrix_flops(graph_of(subject, batch=1), "forward") / 2e9
    assert ours == pytest.approx(published, abs=0.006), source


def zoo(name: str, **build: int) -> Subject:
    """A file of the zoo; `build` are arguments of its `build_model`."""
    if not build:
        return user_file.load(ZOO / f"{name}.py", None)
    namespace = user_file._run(ZOO / f"{name}.py")
    with torch.device("meta"):
        module = namespace["build_model"](**build)
    return subject_of_module(module, namespace["get_inputs"], name)


def test_dit_exactly() -> None:
    """DiT-XL/2, and the 118.64 G multiply-adds of arXiv 2212.09748, table 4."""
    tokens, width, depth = 256, 1152, 28
    graph = graph_of(zoo("dit"), batch=1)
    block = tokens * 12 * width**2 + 2 * tokens**2 * width + 6 * width**2
    ends = tokens * (16 * width + width * 32) + 2 * width**2 + 256 * width + width**2
    assert matrix_flops(graph, "forward") == 2 * (depth * block + ends)
    assert matrix_flops(graph, "forward") / 2e9 == pytest.approx(118.64, rel=1e-3)


def test_unet_has_the_parameters_of_stable_diffusion() -> None:
    """859.52 M parameters; all of a narrower one are reached."""
    assert sum(p.numel() for p in zoo("unet").module.parameters()) == 859_520_964
    namespace = user_file._run(ZOO / "unet.py")
    with torch.device("meta"):
        module = namespace["UNet"](width=32, depth=1, heads=2)
    subject = subject_of_module(module, namespace["get_inputs"], "unet")
    graph = graph_of(subject, batch=1)
    assert matrix_flops(graph, "forward") >= module_flops(subject, {"batch": 1})
    assert all(p.gradient for p in graph.facts.parameters)


def test_dlrm_exactly() -> None:
    """Three products at the bottom, the pairs of 27 vectors, five products at the top; bags have no product."""
    graph = graph_of(zoo("dlrm"), batch=2048)
    widths = [(13, 512), (512, 256), (256, 128), (128 + 351, 1024), (1024, 1024), (1024, 512), (512, 256), (256, 1)]
    expected = 2 * 2048 * (sum(a * b for a, b in widths) + 27 * 27 * 128)
    assert matrix_flops(graph, "forward") == expected
    assert all(p.gradient for p in graph.facts.parameters)


def test_lora_trains_adapters_alone() -> None:
    """A frozen weight has no dW; the first layer's input has no gradient, so there q, k and v have no dX either."""
    h, f, r, v, layers, t = 64, 96, 16, 128, 3, 32
    config = {"vocab_size": v, "hidden_size": h, "intermediate_size": f, "num_hidden_layers": layers,
              "num_attention_heads": 4, "num_key_value_heads": 4}  # fmt: skip
    graph = graph_of(zoo("lora", **config), batch=1, seq=t)
    trained = {p.names[0] for p in graph.facts.parameters if p.trained}
    assert len(trained) == layers * 4 * 2
    assert all("lora_" in name for name in trained)
    frozen = layers * (4 * h * h + 3 * h * f) + h * v - 3 * h * h
    adapters = layers * 4 * (2 * h * r) * 2 - 3 * h * r  # dW and dX of A and B, without the first dX of A
    assert matrix_flops(graph, "backward", kinds=("matmul",)) == 2 * t * (frozen + adapters)


GPT = {"vocab": V, "width": H, "depth": 3, "heads": 4, "length": 64}
GPT_BLOCKS = 3 * (2 * B * S * 12 * H * H + 4 * B * S * S * H)
GPT_HEAD = 2 * B * S * H * V


def small_gpt(name: str, cls: str, batch: int = B) -> Graph:
    """A class of a file of the zoo, built small."""
    namespace = user_file._run(ZOO / f"{name}.py")
    with torch.device("meta"):
        module = namespace[cls](**GPT)
    return graph_of(subject_of_module(module, namespace["get_inputs"], name), batch=batch, seq=S)


def test_a_tied_head_is_one_parameter() -> None:
    graph = small_gpt("gpt", "GPT")
    (tied,) = [p for p in graph.facts.parameters if len(p.names) > 1]
    assert set(tied.names) == {"tokens.weight", "head.weight"}
    assert matrix_flops(graph, "forward") == GPT_BLOCKS + GPT_HEAD


@pytest.mark.parametrize(("name", "skipped"), [("checkpoint_reentrant", 0), ("checkpoint", 3 * 2 * B * S * 4 * H * H)])
def test_checkpointed_blocks_run_twice(name: str, skipped: int) -> None:
    """Without re-entry torch stops as soon as all that was saved is there: each block's last product is left out."""
    graph = small_gpt(name, "Checkpointed")
    assert matrix_flops(graph, "forward") == GPT_BLOCKS + GPT_HEAD
    assert matrix_flops(graph, "recompute") == GPT_BLOCKS - skipped
    assert matrix_flops(graph, "backward") == 2 * (GPT_BLOCKS + GPT_HEAD)


def test_accumulation_is_four_smaller_steps() -> None:
    """Backward that forward itself calls is backward, not a recomputation."""
    graph = small_gpt("accumulation", "Accumulating", batch=8)
    assert graph.facts.unattributed == 0
    assert matrix_flops(graph, "forward") == 4 * (GPT_BLOCKS + GPT_HEAD)
    assert matrix_flops(graph, "recompute") == 0
    assert matrix_flops(graph, "backward") == 2 * 4 * (GPT_BLOCKS + GPT_HEAD)


def test_a_custom_function_computes_again_in_its_own_backward() -> None:
    """Three products forward; backward repeats two of them and has two for each of the three."""
    namespace = user_file._run(ZOO / "custom_autograd.py")
    with torch.device("meta"):
        module = namespace["Stack"](width=H, inner=F, depth=3)
    graph = graph_of(subject_of_module(module, lambda batch, seq: torch.randn(batch, seq, H), "stack"), batch=B, seq=S)
    assert matrix_flops(graph, "forward") == 3 * 3 * 2 * B * S * H * F
    assert matrix_flops(graph, "backward") == 3 * 8 * 2 * B * S * H * F


class Autocast(nn.Module):
    def __init__(self, enabled: bool) -> None:
        super().__init__()
        self.enabled, self.body = enabled, nn.Linear(H, V)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=self.enabled):
            logits = self.body(x)
            return nn.functional.cross_entropy(logits, logits.argmax(-1))


@pytest.mark.parametrize(("enabled", "dtype"), [(True, "fp32"), (False, "bf16")])
def test_autocast_runs_the_loss_in_fp32(enabled: bool, dtype: str) -> None:
    graph = graph_of(subject_of_module(Autocast(enabled), torch.zeros(B, H), "autocast"))
    dtypes = {op.name: op.inputs[0].dtype for block in graph.blocks for op in block.ops if block.phase == "forward"}
    assert dtypes["aten.addmm.default"] == "bf16"
    assert dtypes["aten._log_softmax.default"] == dtype


@pytest.mark.parametrize("kind", ["t5", "wav2vec2", "clip", "qwen2_vl"])
def test_sizes_stay_free(kind: str) -> None:
    """What was captured once is bound to another size, and equals a capture at that size."""
    subject = subject_of(kind)
    sizes = {**subject.sizes, "batch": 1, **({"seq": 48} if "seq" in subject.sizes else {})}
    free = Capture((capture(subject, "train", sizes),))
    assert free.facts.fixed == ""
    other = {**sizes, **({"seq": 56} if "seq" in sizes else {})}
    assert matrix_flops(free.bind(**other), "forward", "backward") == matrix_flops(
        graph_of(subject_of(kind), **other), "forward", "backward"
    )


def test_two_images_cost_twice_one() -> None:
    """The grid of each image is data on the host; what is computed with it is no work of the device."""
    one, two = (graph_of(subject_of("qwen3_vl"), batch=batch, seq=S) for batch in (1, 2))
    assert matrix_flops(two, "forward") == 2 * matrix_flops(one, "forward")
    read = {s.name for block in one.blocks for s in block.storages if s.kind == "input"}
    assert any(name.startswith("host.") for name in read if name)


def test_layers_are_never_drawn() -> None:
    """Layer drop leaves out layers at random: a capture runs all of them and says so."""
    subject = subject_of("wav2vec2")
    assert any("layerdrop" in text for text in subject.assumptions)
    assert len({graph_of(subject).num_ops for _ in range(4)}) == 1


def test_guesses_are_told() -> None:
    facts = graph_of(subject_of("longformer"), batch=B, seq=S).facts
    assert any("taken as false (no token attends to all others)" in text for text in facts.guesses)


def test_a_mask_that_picks_rows_is_refused() -> None:
    """How many rows experts take is data: no number stands in for it."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.expert = nn.Linear(H, 2), nn.Linear(H, H)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            chosen = self.router(x).argmax(-1) == 0
            return self.expert(x[chosen])

    with pytest.raises(TorchperfError, match="needs the data of a tensor"):
        graph_of(subject_of_module(Experts(), torch.zeros(B, H), "experts"))


def test_inputs_that_cannot_be_made_ask_for_an_example() -> None:
    with pytest.raises(TorchperfError, match="cannot make inputs") as caught:
        hf.from_config({"model_type": "decision_transformer", "architectures": ["DecisionTransformerModel"]}, "dt")
    assert ("no rule for", "states") in caught.value.facts
    assert caught.value.hint is not None
    assert "get_inputs" in caught.value.hint


def test_text_alone_without_architectures() -> None:
    named = subject_of("gemma3")
    alone = hf.from_config({"model_type": "gemma3", **MODELS["gemma3"]["config"]}, "gemma3")
    assert "pixel_values" in named.arguments({"batch": 1, "seq": 8})[1]
    assert "pixel_values" not in alone.arguments({"batch": 1, "seq": 8})[1]
    assert any("text alone" in text for text in alone.assumptions)
