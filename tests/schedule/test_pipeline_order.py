"""The order of each schedule: what it does, what it holds, and what it refuses."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchperf.graph.errors import TorchperfError
from torchperf.graph.plan import SCHEDULES as NAMES
from torchperf.schedule.pipeline_order import SCHEDULES, in_flight, order


@st.composite
def shapes(draw: st.DrawFn) -> tuple[str, int, int, int]:
    """(schedule, ranks, micro-batches, chunks) that the schedule can run."""
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    ranks = draw(st.integers(1, 7))
    if name == "interleaved":
        return name, ranks, ranks * draw(st.integers(1, 4)), draw(st.integers(2, 4))
    if name == "dualpipe":
        return name, 2 * ranks, 2 * draw(st.integers(2 * ranks, 4 * ranks)), 2
    return name, ranks, draw(st.integers(1, 20)), 1


def _text(name: str, rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> str:
    actions = order(name, rank, ranks, micro_batches, chunks)
    return " ".join(f"{a.kind}{a.micro_batch}" + (f".{a.chunk}" if chunks > 1 else "") for a in actions)


def test_the_plan_knows_the_same_schedules() -> None:
    assert set(NAMES) == set(SCHEDULES)


@given(shapes())
def test_each_micro_batch_goes_once_forward_and_once_back_on_each_chunk(shape: tuple[str, int, int, int]) -> None:
    name, ranks, micro_batches, chunks = shape
    per_chunk = micro_batches // len(SCHEDULES[name].routes(ranks, chunks))
    for rank in range(ranks):
        done: Counter[tuple[str, int, int]] = Counter()
        for kind, j, chunk in order(name, rank, ranks, micro_batches, chunks):
            if kind in ("B", "BW"):
                assert done["F", j, chunk] == 1
            if kind == "W":
                assert done["B", j, chunk] == 1
            for part in kind if kind == "BW" else (kind,):
                done[part, j, chunk] += 1
        assert set(done.values()) == {1}
        assert Counter((kind, chunk) for kind, _, chunk in done) == {
            (kind, chunk): per_chunk for kind in "FBW" for chunk in range(chunks)
        }


def test_1f1b_as_in_figure_4_of_narayanan() -> None:
    """Figure 4 of arXiv 2104.04473, upper half: 4 ranks, 8 micro-batches, counted from 0."""
    assert _text("1f1b", 3, 4, 8).startswith("F0 BW0 F1 BW1 F2 BW2")
    assert _text("1f1b", 0, 4, 8) == "F0 F1 F2 F3 BW0 F4 BW1 F5 BW2 F6 BW3 F7 BW4 BW5 BW6 BW7"


def test_interleaved_as_in_figure_4_of_narayanan() -> None:
    """Lower half of the figure: two chunks a rank. The first rank runs 11 forwards before its first backward."""
    actions = _text("interleaved", 0, 4, 8, 2).split()
    assert actions[:11] == ["F0.0", "F1.0", "F2.0", "F3.0", "F0.1", "F1.1", "F2.1", "F3.1", "F4.0", "F5.0", "F6.0"]
    assert actions[11:15] == ["BW0.1", "F7.0", "BW1.1", "F4.1"]


def test_zb_h1_delays_the_weights_by_the_rank() -> None:
    assert _text("zb-h1", 0, 3, 4) == "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3"
    assert _text("zb-h1", 2, 3, 4) == "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"


@given(st.integers(1, 8), st.integers(1, 24))
def test_what_1f1b_and_gpipe_hold(ranks: int, micro_batches: int) -> None:
    for rank in range(ranks):
        assert in_flight("1f1b", rank, ranks, micro_batches).total == min(micro_batches, ranks - rank)
        assert in_flight("gpipe", rank, ranks, micro_batches).total == micro_batches


@given(st.integers(1, 8), st.integers(1, 5), st.integers(2, 4))
def test_what_interleaved_holds(ranks: int, rounds: int, chunks: int) -> None:
    """Megatron's warm-up and one more; on the first rank p v + p - 1 chunks: 1 + (p - 1) / (p v) times as much as 1F1B.

    The factor is that of Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.3.
    """
    for rank in range(ranks):
        ahead = 2 * (ranks - rank - 1) + (chunks - 1) * ranks
        held = in_flight("interleaved", rank, ranks, ranks * rounds, chunks)
        assert held.total == min(ranks * rounds * chunks, ahead + 1)
    if rounds > 1:
        first = in_flight("interleaved", 0, ranks, ranks * rounds, chunks).total
        assert first / (ranks * chunks) == pytest.approx(1 + (ranks - 1) / (ranks * chunks))


@given(st.integers(1, 8), st.integers(1, 24))
def test_zb_h1_holds_no_more_than_the_first_rank_of_1f1b(ranks: int, more: int) -> None:
    for rank in range(ranks):
        held = in_flight("zb-h1", rank, ranks, ranks + more, nbytes=(2.0,), nbytes_weight=(1.0,))
        assert held.forward[0] == ranks - rank
        assert held.forward[0] + held.weight[0] <= ranks


@given(st.integers(1, 6), st.integers(0, 6))
def test_dualpipe_holds_one_more_than_ranks(half: int, more: int) -> None:
    ranks = 2 * half
    held = [in_flight("dualpipe", rank, ranks, 2 * ranks + 2 * more, 2).total for rank in range(ranks)]
    assert set(held) == {ranks + 1}


def test_the_worst_moment_follows_the_bytes() -> None:
    """With a heavy second chunk the worst moment is that at which most of the second are held."""
    light = in_flight("interleaved", 0, 4, 8, 2, nbytes=(1.0, 0.0))
    heavy = in_flight("interleaved", 0, 4, 8, 2, nbytes=(0.0, 1.0))
    assert light.forward[0] >= heavy.forward[0]
    assert heavy.forward[1] >= light.forward[1]
    assert light != heavy


@pytest.mark.parametrize(
    ("name", "ranks", "micro_batches", "chunks", "words"),
    [
        ("1f1b", 4, 8, 2, "--virtual-stages 2"),
        ("gpipe", 4, 8, 3, "--virtual-stages 3"),
        ("zb-h1", 4, 8, 2, "--schedule 1f1b"),
        ("interleaved", 4, 8, 1, "--schedule 1f1b"),
        ("interleaved", 4, 10, 2, "8 or 12 micro-batches"),
        ("interleaved", 4, 3, 2, "for 4 micro-batches"),
        ("dualpipe", 4, 8, 1, "two chunks a rank"),
        ("dualpipe", 3, 8, 2, "even number of ranks"),
        ("dualpipe", 4, 6, 2, "an even number from 8 on"),
        ("dualpipe", 4, 9, 2, "even"),
        ("chimera", 4, 8, 1, "one of gpipe, 1f1b"),
        ("1f1b", 4, 0, 1, "at least one"),
    ],
)
def test_what_a_schedule_refuses(name: str, ranks: int, micro_batches: int, chunks: int, words: str) -> None:
    with pytest.raises(TorchperfError) as failure:
        order(name, 0, ranks, micro_batches, chunks)
    assert words in str(failure.value)
