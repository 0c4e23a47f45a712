"""What the specification tests share: a cache of their own, models captured once, and the command line in-process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import hypothesis
import pytest
from click.testing import CliRunner, Result

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported: no test needs a network

hypothesis.settings.register_profile("default", derandomize=True, deadline=None)  # the same examples each time
hypothesis.settings.register_profile("full", deadline=None, max_examples=700)
hypothesis.settings.load_profile(os.environ.get("TORCHPERF_HYPOTHESIS", "default"))


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Captures of this run are cached here, never in the user's cache folder."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHPERF_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def captured(cache_folder: Path) -> Callable[..., object]:
    """`captured("gpt2")`: the capture of a bundled model, made once in the whole run."""
    import torchperf

    return cache(torchperf.capture)


@pytest.fixture(scope="session")
def recorded() -> Callable[..., object]:
    """`recorded("deepseek-v3", 128)`: a bundled model run once at that length, whole, with no size left free.

    Further words replace facts of its config: `n_layer=2`.
    """
    from torchperf import configs
    from torchperf.frontend.capture import capture
    from torchperf.frontend.hf import from_config
    from torchperf.graph.graph import Capture

    @cache
    def record(model: str, seq: int, **changes: int) -> Capture:
        subject = from_config({**configs.load(model), **changes}, model)
        subject.fixed = "one size is enough for this test"
        subject.sizes = {"batch": 1, "seq": seq}
        return Capture((capture(subject, "train", subject.sizes),))

    return record


@pytest.fixture(scope="session")
def shallow() -> Callable[..., object]:
    """`shallow("llama")`, `shallow("gpt2", dropout=0.0)`: three small layers of an architecture, with free sizes."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    import torchperf

    @cache
    def make(name: str, dropout: float = 0.1) -> torchperf.graph.graph.Capture:
        gpt2 = GPT2Config(vocab_size=512, n_embd=64, n_layer=3, n_head=4, attn_pdrop=dropout, resid_pdrop=dropout)
        llama = LlamaConfig(
            vocab_size=512, hidden_size=64, intermediate_size=172, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=1024,
        )  # fmt: skip
        with torch.device("meta"):
            model = GPT2LMHeadModel(gpt2) if name == "gpt2" else LlamaForCausalLM(llama)
        return torchperf.capture(model)

    return make


@pytest.fixture
def command() -> Callable[..., Result]:
    """`command("estimate", "gpt2", ...)` -> the result, with stdout, stderr and exit code apart."""
    from torchperf.cli import main

    def invoke(*args: object) -> Result:
        return CliRunner().invoke(main, [str(arg) for arg in args], prog_name="torchperf")

    return invoke
