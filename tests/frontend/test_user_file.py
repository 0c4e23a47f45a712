"""A user's model.py: how the model and its inputs are found, what may stand in it, and what is left as it was."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchperf
from torchperf.graph.graph import Capture, Graph

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=16, hidden=24):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))
"""
INPUTS = """
def get_inputs():
    return torch.empty(4, 16)
"""
PARAMETERS = 16 * 24 + 24 + 24 * 16 + 16

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write(text, ...)` -> the path of a model.py that holds the texts; `name=` gives it another name."""

    def file(*texts: str, name: str = "model.py") -> Path:
        path = tmp_path / name
        path.write_text("\n".join(map(textwrap.dedent, texts)))
        return path

    return file


def parameters(capture: Capture) -> int:
    return sum(p.numel for p in capture.facts.parameters)


@pytest.mark.parametrize(
    "text",
    [
        "def build_model():\n    return Net()",
        "def get_model():\n    return Net()",
        "model = Net()",
        "",  # the single class
        "class Part(nn.Module):\n    pass\n\ndef build_model():\n    return Net()",
        "model = Net(width=8)\n\ndef build_model():\n    return Net()",  # a function comes before a variable
    ],
    ids=["build_model", "get_model", "variable", "class", "two classes", "order"],
)
def test_where_the_model_is(write: Write, text: str) -> None:
    capture = torchperf.capture(str(write(NET, text, INPUTS)))
    assert capture.facts.model_class == "Net"
    assert parameters(capture) == PARAMETERS
    assert capture.facts.model == "model"


def test_a_class_that_others_are_parts_of(write: Write) -> None:
    """`Outer` uses `Net`: it is the model."""
    outer = """
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.nets = nn.ModuleList([Net(), Net()])

        def forward(self, x):
            return self.nets[1](self.nets[0](x))
    """
    capture = torchperf.capture(str(write(NET, outer, INPUTS)))
    assert (capture.facts.model_class, parameters(capture)) == ("Outer", 2 * PARAMETERS)


@pytest.mark.parametrize("entry", ["Net", "small", "make"])
def test_the_name_after_the_colon(write: Write, entry: str) -> None:
    """`model.py:name` names a class, an object or a function, and comes before `build_model`."""
    text = "small = Net()\n\ndef make():\n    return Net()\n\ndef build_model():\n    return Net(width=16, hidden=8)"
    capture = torchperf.capture(f"{write(NET, text, INPUTS)}:{entry}")
    assert parameters(capture) == PARAMETERS
    assert capture.facts.model == f"model:{entry}"


@pytest.mark.parametrize(
    "inputs",
    [
        "def get_inputs():\n    return torch.empty(4, 16)",
        "def get_inputs():\n    return (torch.empty(4, 16, device='cuda'),)",
        "def get_inputs():\n    return {'x': torch.empty(4, 16).cuda()}",
        "example_inputs = torch.zeros(4, 16)",
        "example_inputs = (torch.zeros(4, 16),)",
        "example_inputs = {'x': torch.zeros(4, 16)}",
    ],
)
def test_an_example_gives_the_batch(write: Write, inputs: str) -> None:
    """Its first dim is the batch, and is free."""
    capture = torchperf.capture(str(write(NET, inputs)))
    assert dict(capture.facts.sizes) == {"batch": 4}
    assert capture.facts.fixed == ""
    one, nine = (torchperf.estimate(capture, gpu="t4", precision="fp16-mixed", micro_batch=b) for b in (1, 9))
    assert nine.flops.forward == 9 * one.flops.forward == 9 * 2 * 2 * 16 * 24


def test_inputs_at_any_size(write: Write) -> None:
    """`get_inputs(batch, seq)` is asked for each size; defaults are its own."""
    inputs = "def get_inputs(batch=2, seq=40):\n    return torch.empty(batch, seq, 16)"
    path = str(write(NET, inputs))
    capture = torchperf.capture(path)
    assert dict(capture.facts.sizes) == {"batch": 2, "seq": 40}
    for batch, seq in ((1, 40), (3, 77)):
        answer = torchperf.estimate(path, gpu="t4", precision="fp16-mixed", micro_batch=batch, seq_len=seq)
        assert answer.sizes == (("batch", batch), ("seq", seq))
        assert answer.flops.forward == batch * seq * 2 * 2 * 16 * 24
        assert answer.tokens_per_step == batch * seq


def test_loss_fn(write: Write) -> None:
    """The loss of the user's stands where the sum of the outputs would."""
    loss = "def loss_fn(outputs):\n    return torch.nn.functional.mse_loss(outputs, torch.zeros_like(outputs))"
    own, summed = (torchperf.capture(str(write(NET, INPUTS, text))) for text in (loss, ""))
    names = {op.name for op, _ in own.graphs[0].ops()}
    assert {"aten.mse_loss.default", "aten.mse_loss_backward.default"} <= names
    assert own.facts.assumptions == ()
    assert summed.facts.assumptions == ("forward returns no loss: the sum of its outputs stands in for one",)


NANO_GPT = """
import torch
from torch import nn
import torch.nn.functional as F

device = "cuda"
mask = torch.tril(torch.ones(64, 64)).cuda()

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.register_buffer("scale", torch.tensor([0.25], device=device))

    def forward(self, x):
        q, k, v = self.qkv(x).split(32, -1)
        scores = (q @ k.transpose(-2, -1)).to("cuda:0") * self.scale
        scores = scores.masked_fill(mask[: x.shape[1], : x.shape[1]] == 0, float("-inf"))
        return x + self.out(F.softmax(scores, -1) @ v)

class GPT(nn.Module):
    def __init__(self, block_size=64):
        super().__init__()
        self.block_size = block_size
        self.tok, self.pos = nn.Embedding(50, 32), nn.Embedding(block_size, 32)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Linear(32, 50)

    def forward(self, idx, targets=None):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1], device=idx.device).to(device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss

model = GPT().to(device)
model = torch.compile(model) if False else model.cuda()
"""


def test_a_file_hard_wired_to_cuda(write: Write) -> None:
    """nanoGPT's way: `.cuda()` at import, `device="cuda"`, buffers, a loss beside the logits, targets guessed."""
    path = str(write(NANO_GPT))
    capture = torchperf.capture(path)
    facts = capture.facts
    assert (facts.unattributed, facts.guesses, facts.fixed, facts.assumptions) == (0, (), "", ())
    assert dict(facts.sizes) == dict(facts.limits) | {"batch": 1} == {"batch": 1, "seq": 64}
    seq = 48
    answer = torchperf.estimate(path, gpu="t4", precision="fp16-mixed", seq_len=seq)
    per_layer = 2 * seq * 32 * 128 + 2 * 2 * seq * seq * 32
    assert answer.flops.forward == 3 * per_layer + 2 * seq * 32 * 50
    assert answer.flops.backward == 2 * answer.flops.forward


@pytest.mark.parametrize(
    "text",
    [
        "from transformers import GPT2LMHeadModel\nmodel = GPT2LMHeadModel.from_pretrained('gpt2')",
        "import transformers\n\ndef build_model():\n"
        "    return transformers.AutoModelForCausalLM.from_pretrained('openai-community/gpt2').to('cuda')",
    ],
    ids=["class", "auto"],
)
def test_from_pretrained_reads_no_weights(write: Write, text: str, tmp_path: Path) -> None:
    """Whether or not its auto classes were imported before; afterwards transformers loads as it did."""
    from transformers import AutoModelForCausalLM

    capture = torchperf.capture(str(write(text)), seq_len=32)
    assert parameters(capture) == 124_439_808
    assert capture.facts.model_class == "GPT2LMHeadModel"
    assert dict(capture.facts.limits) == {"seq": 1024}
    with pytest.raises(OSError, match="nowhere"):
        AutoModelForCausalLM.from_pretrained(str(tmp_path / "nowhere"))


def test_from_pretrained_of_a_folder(write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 50, "n_positions": 64}'
    )
    text = "from transformers import AutoModelForCausalLM\n"
    text += f"model = AutoModelForCausalLM.from_pretrained({str(folder)!r})"
    capture = torchperf.capture(str(write(text)))
    assert parameters(capture) == 50 * 32 + 64 * 32 + 2 * (12 * 32**2 + 13 * 32) + 2 * 32


HELPER = """
from torch import nn

WIDTH = {width}

def layer():
    return nn.Linear(16, WIDTH)
"""
USES_HELPER = """
import torch
from torch import nn
from parts import layer

model = nn.Sequential(layer())

def get_inputs():
    return torch.empty(2, 16)
"""


def test_a_local_import_and_the_cache(write: Write, cache_folder: Path) -> None:
    """A module beside model.py is found, and editing it makes the cached capture void."""
    write(HELPER.format(width=24), name="parts.py")
    path = str(write(USES_HELPER))
    assert parameters(torchperf.capture(path)) == 17 * 24
    before = set(cache_folder.iterdir())
    assert parameters(torchperf.capture(path)) == 17 * 24
    assert set(cache_folder.iterdir()) == before
    write(HELPER.format(width=40), name="parts.py")
    assert parameters(torchperf.capture(path)) == 17 * 40
    assert parameters(torchperf.capture(path, refresh=True)) == 17 * 40


def test_a_package_beside_the_file(write: Write, tmp_path: Path) -> None:
    """`from net.parts import layer`, with an import of its own inside the package."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "__init__.py").write_text("")
    (tmp_path / "net" / "sizes.py").write_text("WIDTH = 24\n")
    (tmp_path / "net" / "parts.py").write_text(
        "from torch import nn\nfrom .sizes import WIDTH\n\ndef layer():\n    return nn.Linear(16, WIDTH)\n"
    )
    path = str(write(USES_HELPER.replace("from parts", "from net.parts")))
    assert parameters(torchperf.capture(path)) == 17 * 24
    (tmp_path / "net" / "sizes.py").write_text("WIDTH = 400\n")
    assert parameters(torchperf.capture(path)) == 17 * 400


def test_a_file_that_is_read(write: Write, tmp_path: Path) -> None:
    """A size that the file reads from JSON: another content, another capture."""
    text = """
    import json, pathlib
    import torch
    from torch import nn

    width = json.loads((pathlib.Path(__file__).parent / "sizes.json").read_text())["width"]
    model = nn.Linear(16, width)
    example_inputs = torch.empty(2, 16)
    """
    sizes = tmp_path / "sizes.json"
    sizes.write_text('{"width": 24}')
    path = str(write(text))
    assert parameters(torchperf.capture(path)) == 17 * 24
    sizes.write_text('{"width": 40}')
    assert parameters(torchperf.capture(path)) == 17 * 40


def test_editing_the_file_itself(write: Write) -> None:
    path = str(write(NET, INPUTS, "model = Net()"))
    assert parameters(torchperf.capture(path)) == PARAMETERS
    write(NET, INPUTS, "model = Net(hidden=2)")
    assert parameters(torchperf.capture(path)) == 16 * 2 + 2 + 2 * 16 + 16


def test_two_files_of_one_name(write: Write, tmp_path: Path) -> None:
    """model.py of one folder does not answer for model.py of another, nor do their helpers."""
    other = tmp_path / "other"
    other.mkdir()
    write(HELPER.format(width=24), name="parts.py")
    (other / "parts.py").write_text(HELPER.format(width=40))
    (other / "model.py").write_text(USES_HELPER)
    assert parameters(torchperf.capture(str(write(USES_HELPER)))) == 17 * 24
    assert parameters(torchperf.capture(str(other / "model.py"))) == 17 * 40


class Live(nn.Module):
    """Frozen first layer, a buffer, dropout: what a capture could disturb."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16).requires_grad_(False), nn.Linear(16, 16)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.second(self.drop(self.first(x)))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mode", ["train", "forward"])
def test_a_live_module_is_left_as_it_was(training: bool, mode: str) -> None:
    module = Live().train(training)
    kept = dict((*module.named_parameters(), *module.named_buffers()))
    values = {name: tensor.clone() for name, tensor in kept.items()}
    gradient = module.second.weight.grad = torch.ones(16, 16)
    capture = torchperf.capture(module, torch.zeros(2, 16), mode=mode)
    assert capture.facts.mode == mode
    after = dict((*module.named_parameters(), *module.named_buffers()))
    assert after.keys() == kept.keys()
    for name, tensor in after.items():
        assert tensor is kept[name]
        assert (tensor.device.type, tensor.dtype) == ("cpu", torch.float32)
        assert torch.equal(tensor, values[name])
    assert module.second.weight.grad is gradient
    assert [m.training for m in module.modules()] == [training] * len(list(module.modules()))
    assert [p.requires_grad for p in module.parameters()] == [False, False, True, True]
    assert module(torch.zeros(2, 16)).device.type == "cpu"  # nothing stays patched
    trainable = {p.names: p.trainable for p in capture.facts.parameters}
    assert trainable[("first.weight",)] is False
    assert trainable[("second.weight",)] is True


def test_a_transformers_model_is_left_as_it_was() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=50, n_positions=64)).eval()
    before = (model.config.to_dict(), model.config._attn_implementation, id(model.lm_head.weight))
    torchperf.capture(model)
    assert (model.config.to_dict(), model.config._attn_implementation, id(model.lm_head.weight)) == before
    assert not model.training
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    ids = torch.zeros(1, 4, dtype=torch.long)
    assert model(ids).logits.device.type == "cpu"


def test_every_public_function_twice(write: Write, tmp_path: Path) -> None:
    """Nothing is used up or left behind: the second answer equals the first."""
    module, inputs = Live(), torch.zeros(2, 16)
    path = str(write(NET, INPUTS))
    saved = tmp_path / "graph.json"
    calls: list[Callable[[], Any]] = [
        lambda: torchperf.capture(module, inputs),
        lambda: torchperf.capture(path),
        lambda: torchperf.capture(path, refresh=True),
        lambda: torchperf.estimate(path, gpu="t4", precision="fp16-mixed"),
        lambda: torchperf.inspect(path),
        lambda: torchperf.mfu(path, gpu="t4", precision="fp16-mixed", tokens_per_s_per_gpu=10.0),
        lambda: (torchperf.save(torchperf.capture(path), saved), saved.read_bytes())[1],
        lambda: torchperf.load(saved),
    ]
    for call in calls:
        assert call() == call()
    assert torchperf.load(saved) == torchperf.capture(path)
    assert torchperf.estimate(torchperf.load(saved), gpu="t4", precision="fp16-mixed") == torchperf.estimate(
        path, gpu="t4", precision="fp16-mixed"
    )


def phases(graph: Graph) -> dict[str, int]:
    """Ops of each phase."""
    found: dict[str, int] = {}
    for op, count in graph.ops():
        found[op.phase] = found.get(op.phase, 0) + count
    return found


CHECKPOINTED = """
from torch.utils.checkpoint import checkpoint

class Deep(nn.Module):
    def __init__(self, again):
        super().__init__()
        self.layers, self.again = nn.ModuleList([Net() for _ in range(4)]), again

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.again else layer(x)
        return x

plain, again = Deep(False), Deep(True)
"""


def test_recompute_of_the_model_s_own(write: Write) -> None:
    """torch.utils.checkpoint: each layer's forward runs again, as phase `recompute`; model FLOPs stay the same."""
    path = write(NET, CHECKPOINTED, "def get_inputs():\n    return torch.empty(4, 16, requires_grad=True)")
    how = {"gpu": "t4", "precision": "fp16-mixed"}
    plain, again = (torchperf.estimate(f"{path}:{name}", **how) for name in ("plain", "again"))
    assert again.flops.model == plain.flops.model
    assert plain.flops.recompute == 0
    # recompute stops once it has what backward needs: the last linear of a layer need not run again
    assert plain.flops.forward // 2 <= again.flops.recompute <= plain.flops.forward
    assert again.memory.activations <= plain.memory.activations
    assert any("checkpoints itself" in line for line in again.assumptions)
    asked = torchperf.estimate(f"{path}:again", recompute="full", **how)
    assert asked.flops == again.flops  # not twice
    capture = torchperf.capture(f"{path}:again")
    assert phases(capture.graphs[0]).keys() == {"forward", "recompute", "backward"}
    assert capture.facts.unattributed == 0


def test_recompute_of_transformers() -> None:
    """`gradient_checkpointing_enable()`: what `--recompute full` makes of the plain model, in FLOPs and activations."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def build() -> LlamaForCausalLM:
        config = LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2,
        )  # fmt: skip
        with torch.device("meta"):
            return LlamaForCausalLM._from_config(config)

    model = build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the name of transformers 4; 5 has two
        model.gradient_checkpointing_enable({"use_reentrant": False})
    own, plain = (torchperf.capture(m, micro_batch=1, seq_len=96) for m in (model, build()))
    how = {"gpu": "h100-sxm-80gb", "seq_len": 96}
    theirs, ours = torchperf.estimate(own, **how), torchperf.estimate(plain, recompute="full", **how)
    none = torchperf.estimate(plain, **how)
    assert own.facts.unattributed == 0
    assert theirs.flops.model == ours.flops.model == none.flops.model
    assert 0 < theirs.flops.recompute <= ours.flops.recompute
    rows = [
        next(row for row in torchperf.inspect(c, seq_len=96, recompute=r).rows if row.module == "model.layers.*")
        for c, r in ((own, "none"), (plain, "full"))
    ]
    assert rows[0].activation_bytes == rows[1].activation_bytes
