"""Names, configs and saved graphs that name no model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torchperf
from torchperf.graph.graph import Capture


def test_unknown_name(refused_model) -> None:
    said = refused_model("gpt3-175")
    assert said.splitlines()[0] == "error: no bundled config is named `gpt3-175`"
    assert "did you mean `gpt3-175b`" in said


def test_hub_id_offline(refused_model) -> None:
    """The loading code of transformers ran; the message points to what works without a network."""
    said = refused_model("torchperf-tests/no-such-model")
    first = "error: cannot fetch the config of `torchperf-tests/no-such-model` from the hub"
    assert said.splitlines()[0] == first
    for way in ("a folder with config.json", "a model.py", "`torchperf models`"):
        assert way in said


CONFIGS = {
    "no JSON": ("{nope", "`folder/config.json` is not JSON"),
    "no model_type": ('{"hidden_size": 3}', "`folder/config.json` is no model config"),
    "a list": ("[]", "`folder/config.json` is no model config"),
    "unknown model_type": ('{"model_type": "frobnicate"}', "transformers knows no model type `frobnicate`"),
    "model_type is a number": ('{"model_type": 3}', "transformers knows no model type `3`"),
    "hidden size is a word": (
        '{"model_type": "llama", "hidden_size": "wide"}',
        "transformers refuses the config of `folder`",
    ),
}


@pytest.mark.parametrize("fault", CONFIGS)
@pytest.mark.parametrize("how", ["folder", "file"])
def test_config(refused_model, file, fault: str, how: str) -> None:
    text, first = CONFIGS[fault]
    path = file("folder/config.json", text)
    said = refused_model("folder" if how == "folder" else path)
    assert said.splitlines()[0] == f"error: {first}"


def test_folder_without_config(refused_model, file) -> None:
    file("folder/readme.md", "")
    assert refused_model("folder").splitlines()[0] == "error: `folder` holds no config.json"


@pytest.fixture(scope="module")
def tiny() -> Capture:
    import torch

    return torchperf.capture(torch.nn.Linear(8, 8), torch.empty(3, 8))


@pytest.fixture
def saved(tiny: Capture, file) -> Callable[[Callable[[dict[str, Any]], object]], str]:
    """A saved graph after an edit of its JSON."""

    def edited(edit: Callable[[dict[str, Any]], object]) -> str:
        file("graph.json", "")
        torchperf.save(tiny, "graph.json")
        contents = json.loads(Path("graph.json").read_text())
        edit(contents)
        return file("graph.json", json.dumps(contents, separators=(",", ":")))

    return edited


def _op(contents: dict[str, Any]) -> list[Any]:
    op = contents["graphs"][0]["blocks"][0]["ops"][0]
    assert isinstance(op, list)
    return op


EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "no graphs": lambda c: c.update(graphs=[]),
    "another key": lambda c: c.update(more=1),
    "a segment of no block": lambda c: c["graphs"][0]["segments"][0].__setitem__(0, 99),
    "a value of no slot": lambda c: c["graphs"][0]["blocks"][0]["values"][0].__setitem__(0, 99),
    "an operand too many": lambda c: _op(c)[3].append("self"),
    "an input of no value": lambda c: _op(c)[4].__setitem__(0, 9999),
    "not an expression": lambda c: c["graphs"][0]["blocks"][0]["values"][0].__setitem__(2, ["__import__('os')"]),
    "no facts": lambda c: c["graphs"][0].update(facts={}),
    "a phase that there is not": lambda c: c["graphs"][0]["blocks"][0].update(phase="sideways"),
    "a dtype that there is not": lambda c: c["graphs"][0]["blocks"][0]["values"][0].__setitem__(1, "fp7"),
    "a size that there is not": lambda c: c["graphs"][0]["blocks"][0]["storages"][0].__setitem__(0, "8*width"),
}


@pytest.mark.parametrize("fault", EDITS)
def test_corrupt_saved_graph(refused_model, saved, fault: str) -> None:
    said = refused_model(saved(EDITS[fault]))
    assert said.splitlines()[0] == "error: `graph.json` is not a whole graph"
    assert "capture the model again with `torchperf capture MODEL -o FILE`" in said


@pytest.mark.parametrize("end", [40, 200, -1])
def test_truncated_saved_graph(refused_model, saved, file, end: int) -> None:
    text = Path(saved(lambda c: None)).read_text()
    said = refused_model(file("graph.json", text[:end]))
    assert said.splitlines()[0] == "error: `graph.json` is not a whole graph"


def test_empty_file(refused_model, file) -> None:
    assert refused_model(file("graph.json", "")).splitlines()[0] == "error: `graph.json` is not JSON"


def test_saved_graph_of_another_version(refused_model, saved) -> None:
    said = refused_model(saved(lambda c: c.update(version=0)))
    assert said.splitlines()[0].startswith("error: `graph.json` is of an older version")
    assert "version 0" in said


def test_saved_graph_of_another_mode(refused_model, saved) -> None:
    said = refused_model(saved(lambda c: None), "--mode", "forward")
    assert said.splitlines()[0] == "error: `graph.json` was captured for another mode"
    assert "give `--mode train`" in said


def test_saved_graph_beyond_what_it_holds(refused_model, file, tmp_path) -> None:
    """A graph whose sizes are fixed says so; it is not captured again behind the user's back."""
    import torch

    class Fixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) if x.shape[0] % 2 else self.layer(x).relu()

    torchperf.save(torchperf.capture(Fixed(), torch.empty(4, 8)), tmp_path / "graph.json")
    file("here.txt", "")
    said = refused_model("graph.json", "--micro-batch", 6)
    assert said.splitlines()[0] == "error: `batch` = 6 lies outside what was captured"
