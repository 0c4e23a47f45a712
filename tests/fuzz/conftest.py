"""What every fuzz test asks of an example: a result or one TorchperfError, soon, and nothing that was in it is run.

How many examples a test tries follows the Hypothesis profile: a share of the profile's `max_examples`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import torchperf
from torchperf.cli import main
from torchperf.graph import codec
from torchperf.graph.errors import TorchperfError
from torchperf.graph.graph import Capture

SECONDS = 5.0  # of processor time, which other work on the machine does not lengthen
FORBIDDEN = (
    "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class", "socket.connect",
)  # fmt: skip
_seen: list[str] | None = None


class _TooLong(BaseException):
    """Not an Exception: nothing in the product may swallow it."""


def _audit(event: str, arguments: Any) -> None:
    if _seen is not None and event in FORBIDDEN:
        _seen.append(f"{event} {arguments!r:.200}")


sys.addaudithook(_audit)


def _stop(number: int, frame: FrameType | None) -> None:
    raise _TooLong


@contextmanager
def _watched() -> Iterator[None]:
    global _seen
    _seen = []
    before = signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS, 1.0)  # again, should a callback have swallowed the first
    try:
        yield
    except _TooLong:
        raise AssertionError(f"still running after {SECONDS} s") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        seen, _seen = _seen, None
    assert not seen, f"an input made the program do {seen}"


@pytest.fixture(scope="session")
def attempt() -> Callable[[], AbstractContextManager[None]]:
    """`with attempt(): ...`: a TorchperfError ends the body quietly; any other exception, or 5 s, is a failure."""

    @contextmanager
    def body() -> Iterator[None]:
        with _watched():
            try:
                yield
            except TorchperfError as error:
                said = error.message
            else:
                return
        assert said
        assert "\n" not in said, said

    return body


@pytest.fixture
def ends_well(command: Callable[..., Result]) -> Callable[..., Result]:
    """`ends_well("estimate", ...)`: the command ends with 0, 1 or 2 and, for 2, with one message and no traceback."""

    def run(*args: object) -> Result:
        with _watched():
            result = command(*args)
        shown = f"torchperf {args}\n{result.output}"
        assert result.exit_code in (0, 1, 2), shown
        assert "Traceback" not in result.output, shown
        assert "internal: " not in result.stderr, shown
        assert (result.exit_code == 2) == (result.stderr.startswith("error: ") or "\nerror: " in result.stderr), shown
        return result

    return run


@pytest.fixture(scope="session")
def tiny(shallow: Callable[..., Capture]) -> Callable[[], Capture]:
    """`tiny()`: three layers of a small Llama. A function, as Hypothesis prints what a failing test was given."""
    return lambda: shallow("llama")


@pytest.fixture(scope="session")
def one_layer() -> Callable[[], Capture]:
    """`one_layer()`: a model whose file is short, so that a change hits every kind of thing in it."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + self.down(nn.functional.gelu(self.up(self.norm(x))))).mean()

    capture = torchperf.capture(Layer(), torch.empty(4, 16), name="layer")
    return lambda: capture


@pytest.fixture(scope="session")
def saved(one_layer: Callable[[], Capture]) -> bytes:
    """That model as a graph file."""
    return codec.encode(one_layer())


@pytest.fixture(scope="session")
def graph_file(tiny: Callable[[], Capture], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph file that commands can price without torch."""
    path = tmp_path_factory.mktemp("graphs") / "llama.json"
    torchperf.save(tiny(), path)
    return path


@pytest.fixture(scope="session")
def answer_file(graph_file: Path) -> Path:
    """A saved answer, which `explain` reads."""
    path = graph_file.with_name("answer.json")
    args = ["estimate", str(graph_file), "--gpu", "h100-sxm-80gb", "--seq-len", "64", "--json", str(path)]
    assert CliRunner().invoke(main, args).exit_code == 0
    return path


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands run in: what a word of theirs names as a file lands here."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
