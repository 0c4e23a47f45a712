"""A model.py that cannot be used: what is said of it."""

from __future__ import annotations

import pytest

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.layer = nn.Linear(width, 16)

    def forward(self, x):
        return self.layer(x)
"""
INPUTS = """
def get_inputs():
    return torch.empty(4, 16)
"""


def body(statement: str) -> str:
    """The file with another last line of forward."""
    return NET.replace("return self.layer(x)", statement) + INPUTS


# what is wrong: (the file, the first line of the message, a later line)
FILES = {
    "syntax error": ("import torch\ndef f(:\n", "`model.py` has a syntax error", "line    2: def f(:"),
    "no model": ("import torch\nx = 1\n", "no model found in `model.py`", "define `build_model()`"),
    "two models": (
        NET + NET.replace("Net", "Other") + INPUTS,
        "`model.py` has more than one model",
        "found  `Net`, `Other`",
    ),
    "constructor needs arguments": (
        NET.replace("width=16", "width") + INPUTS,
        "no model of `model.py` can be built without arguments",
        "Net  needs width",
    ),
    "no inputs": (NET, "cannot make inputs for `Net`", "define `get_inputs()`"),
    "raises at import": (
        NET + "raise RuntimeError('no luck')\n",
        "`model.py` failed while running the file",
        "reason  RuntimeError: no luck",
    ),
    "exits at import": (
        "import sys\nsys.exit(3)\n",
        "`model.py` failed while running the file",
        "reason  SystemExit: 3",
    ),
    "missing import": (
        "import surely_not_installed\n",
        "`model.py` failed while running the file",
        "No module named 'surely_not_installed'",
    ),
    "build_model raises": (
        NET + INPUTS + "def build_model():\n    return {}['x']\n",
        "`model.py` failed while building the model",
        "reason  KeyError: 'x'",
    ),
    "get_inputs raises": (
        NET + "def get_inputs():\n    return {}['x']\n",
        "`model.py` failed while making the inputs",
        "reason  KeyError: 'x'",
    ),
    "build_model gives no module": (
        NET + INPUTS + "def build_model():\n    return 3\n",
        "`build_model` of `model.py` is no model",
        "it is  int",
    ),
    # the model runs, and fails
    "inputs of wrong shape": (
        NET + "def get_inputs():\n    return torch.empty(4, 17)\n",
        "`model` failed in forward or backward",
        "RuntimeError",
    ),
    "too many inputs": (
        NET + "def get_inputs():\n    return torch.empty(4, 16), torch.empty(4, 16)\n",
        "`model` failed in forward or backward",
        "takes 2 positional arguments but 3 were given",
    ),
    "forward raises": (body("raise KeyError('lost')"), "`model` failed in forward or backward", "KeyError"),
    "data-dependent shape": (
        body("return self.layer(x[torch.nonzero(x.sum(-1))[:, 0]])"),
        "`model` needs the data of a tensor, which is not there",
        "nonzero",
    ),
    "boolean index": (
        body("return self.layer(x[x.sum(-1) > 0])"),
        "`model` needs the data of a tensor, which is not there",
        "nonzero",
    ),
    "integer .item()": (
        body("return self.layer(x[: x.argmax().item()])"),
        "the model reads a number out of a tensor (`.item()`), which has no data here",
        "dtype  i64",
    ),
    "tolist()": (
        body("return self.layer(x) * x.argmax(-1).tolist()[0]"),
        "`model` needs the data of a tensor, which is not there",
        "hint: ",
    ),
    "nothing to train": (body("return 3"), "`model` failed in forward or backward", "hint: "),
}


@pytest.mark.parametrize("fault", FILES)
def test_one_message(refused_model, file, fault: str) -> None:
    text, first, later = FILES[fault]
    said = refused_model(file("model.py", text))
    assert said.splitlines()[0] == f"error: {first}"
    assert later in said


def test_missing_file(refused_model, file) -> None:
    file("other.py", NET)
    assert refused_model("model.py").splitlines()[0] == "error: no file `model.py`"


def test_missing_name(refused_model, file) -> None:
    said = refused_model(file("model.py", NET + INPUTS) + ":missing")
    assert said.splitlines()[0] == "error: `model.py` defines no `missing`"
    assert "it defines: Net, get_inputs" in said


def test_name_of_no_model(refused_model, file) -> None:
    said = refused_model(file("model.py", NET + INPUTS + "size = 3\n") + ":size")
    assert said.splitlines()[0] == "error: `size` of `model.py` is no model"


def test_a_failure_leaves_torch_as_it_was(refused_model, file) -> None:
    """What was patched for the capture is put back."""
    import torch

    refused_model(file("model.py", body("raise KeyError('lost')")))
    assert torch.zeros(2).device.type == "cpu"
    assert torch.nn.functional.dropout.__module__ == "torch.nn.functional"
    assert torch.is_grad_enabled()
