"""What the specification tests share: a cache of their own, models captured once, and the command line in-process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported: no test needs a network


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


@pytest.fixture
def command() -> Callable[..., Result]:
    """`command("estimate", "gpt2", ...)` -> the result, with stdout, stderr and exit code apart."""
    from torchperf.cli import main

    def invoke(*args: object) -> Result:
        return CliRunner().invoke(main, [str(arg) for arg in args], prog_name="torchperf")

    return invoke
