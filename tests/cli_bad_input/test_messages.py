"""messages.toml: what each refusal says, word for word."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from torchperf.validate.inference_rows import COLUMNS as INFERENCE
from torchperf.validate.training_rows import COLUMNS as TRAINING

MESSAGES: list[dict[str, str]] = tomllib.loads(Path(__file__).with_name("messages.toml").read_text())["message"]
RUNS = "\n".join((",".join(("id", *sorted(TRAINING))), "kor22-001", "kor22-002", "kor22-001", ""))
FILES = {
    "bad.csv": "a,b\n1,2\n", "empty.csv": "", "plan.toml": "x = 3\n", "plan2.toml": "[[[\n", "notjson.json": "{",
    "norows.csv": ",".join(sorted(INFERENCE)) + "\n", "runs.csv": RUNS,
    "torn.json": '{"format": "torchperf-graph"', "list.json": "[]", "noexp.json": "{}",
}  # fmt: skip
SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64, "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "max_position_embeddings": 256,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the commands name."""
    from torchperf.cli import main

    where = tmp_path_factory.mktemp("messages")
    for name, text in FILES.items():
        (where / name).write_text(text)
    (where / "small").mkdir()
    (where / "small" / "config.json").write_text(json.dumps(SMALL))
    done = CliRunner().invoke(main, ["capture", str(where / "small" / "config.json"), "-o", str(where / "small.json")])
    assert done.exit_code == 0, done.output
    return where


@pytest.mark.parametrize("message", MESSAGES, ids=[message["run"] for message in MESSAGES])
def test_word_for_word(
    refused: Callable[..., str], folder: Path, monkeypatch: pytest.MonkeyPatch, message: dict[str, str]
) -> None:
    monkeypatch.chdir(folder)
    assert refused(*shlex.split(message["run"])).rstrip().startswith(message["says"].rstrip())


def test_there_are_many_and_no_two_alike() -> None:
    """A hint nearly everywhere; where there is none the facts say where the fault lies."""
    first = {message["says"].splitlines()[0] for message in MESSAGES}
    assert len(first) >= 60
    assert len({message["run"] for message in MESSAGES}) == len(MESSAGES)
    whole = [message["says"] for message in MESSAGES if "\n" in message["says"].strip()]
    assert sum("\nhint: " in text for text in whole) > 0.9 * len(whole)
    assert sum("\n  " in text for text in whole) > 0.25 * len(whole)
