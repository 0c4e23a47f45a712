"""DualPipe: half of the micro-batches go down the ranks, the other half up.

Chunk 0 of a rank is stage `rank` of those that enter at the first rank, chunk 1 stage `p - 1 - rank` of those that
enter at the last; so each rank keeps two stages of the model. Micro-batches m/2 and on go up.

bubble   (p/2 - 1) (f + b - 2 w) of equal stages, b the whole backward, where f = b - w >= w: of a pair of forward and
         backward the first runs and sends before the second. Where both end together, in f&b seconds, it is the
         paper's (p/2 - 1) (f&b + b - 3 w): with f&b = f + b, (p/2 - 1) (b - w) more
ignores  that the communication of one of a pair hides behind the compute of the other
holds    p + 1 pairs of micro-batch and chunk
needs    p even; micro-batches even and at least 2 p
source   DeepSeek-V3, arXiv 2412.19437, section 3.2.1 and table 2; eight phases as in github.com/deepseek-ai/DualPipe
"""

from __future__ import annotations

from ...graph.errors import TorchperfError
from ..pipeline_action import Action, Route


def routes(ranks: int, chunks: int) -> tuple[Route, ...]:
    """Down through chunk 0, and up through chunk 1."""
    return tuple((r, 0) for r in range(ranks)), tuple((r, 1) for r in reversed(range(ranks)))


def order(rank: int, ranks: int, micro_batches: int, chunks: int = 2) -> list[Action]:
    """The actions of a rank. Raises TorchperfError where the constraints above do not hold.

    A letter is f, b (towards the input), w (the oldest b that waits) or a (all of backward); 0 is the direction that
    enters nearer to the rank, 1 the other.
    """
    _check(ranks, micro_batches, chunks)
    near = min(rank, ranks - 1 - rank)
    inner = ranks // 2 - near - 1
    split = (near + 1) // 2  # micro-batches of the sixth phase before its backward is cut in two
    whole, cut = ("a1 a0", "b1 b0")
    middle = cut if near % 2 else "a1 b0"
    phases = (
        ("f0", 2 * inner),
        ("f0 f1", near + 1),
        ("b1 w f1", inner),
        ("f0 a1 f1 a0", micro_batches // 2 - ranks + near + 1),
        ("a1 f1 a0", inner),
        (whole, split),
        (middle, 1),
        (cut, near - split),
        ("w b0", inner),
        ("w", near + 1),
    )
    return _spelled(" ".join(f"{phase} " * times for phase, times in phases).split(), rank >= ranks // 2, micro_batches)


def _spelled(letters: list[str], far: bool, micro_batches: int) -> list[Action]:
    """Letters -> actions: each direction counts its own micro-batches."""
    count = {(kind, direction): direction * (micro_batches // 2) for kind in "fb" for direction in (0, 1)}
    waiting: list[tuple[int, int]] = []
    actions = []
    for letter in letters:
        if letter == "w":
            actions.append(Action("W", *waiting.pop(0)))
            continue
        direction = int(letter[1]) ^ far
        key = ("f" if letter[0] == "f" else "b", direction)
        actions.append(Action({"f": "F", "b": "B", "a": "BW"}[letter[0]], count[key], direction))
        if letter[0] == "b":
            waiting.append((count[key], direction))
        count[key] += 1
    return actions


def bubble(ranks: int, forward: float, backward: float, weight: float) -> float:
    """Seconds that a rank of equal stages is idle; `backward` is the whole of it, `weight` its second part."""
    return (ranks // 2 - 1) * (forward + backward - 2 * weight)


def _check(ranks: int, micro_batches: int, chunks: int) -> None:
    facts = [("--pp", str(ranks)), ("micro-batches", str(micro_batches)), ("chunks a rank", str(chunks))]
    if chunks != 2:
        raise TorchperfError("the schedule `dualpipe` has two chunks a rank, one a direction", facts=facts)
    if ranks % 2:
        raise TorchperfError(
            "the schedule `dualpipe` needs an even number of ranks", facts=facts, hint="an even `--pp`"
        )
    if micro_batches % 2 or micro_batches < 2 * ranks:
        raise TorchperfError(
            "the schedule `dualpipe` needs micro-batches that are even and at least twice the ranks",
            facts=facts,
            hint=f"choose `--global-batch` or `--micro-batch` for an even number from {2 * ranks} on",
        )
