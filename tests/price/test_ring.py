"""The price of a ring of attention and of its messages, and of the most loaded rank."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchperf.annotate import work
from torchperf.graph.op import Op
from torchperf.graph.system import System
from torchperf.graph.tensor import Value
from torchperf.hardware import load_accelerator, load_runtime, load_system
from torchperf.price import attention, ring
from torchperf.price.collective import collective
from torchperf.price.pricer import Pricer

H100 = load_accelerator("h100-sxm-80gb")
EAGER = load_runtime("eager")


def value(slot: int, *shape: int, dtype: str = "bf16") -> Value:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return Value(slot, dtype, shape, tuple(reversed(strides)))


def op(own: int, ranks: int = 0, causal: bool = True, backward: bool = False) -> Op:
    """Attention of 32 heads over 8 KV heads of 128; with `ranks` as one rank of a ring runs it."""
    query, key = value(0, 1, 32, own, 128), value(1, 1, 8, own, 128)
    statistic = value(4, 1, 32, own, dtype="fp32")
    operands, inputs = ("query", "key", "value"), (query, key, replace(key, slot=2))
    outputs = (replace(query, slot=3), statistic)
    name = "torchperf.attention.default"
    if backward:
        operands = ("grad_out", *operands, "out", "logsumexp")
        inputs = (replace(query, slot=5), *inputs, *outputs)
        outputs = (replace(query, slot=6), replace(key, slot=7), replace(key, slot=8))
        name = "torchperf.attention_backward.default"
    attrs = (("is_causal", causal), *((("ring", ranks),) if ranks else ()))
    if ranks:
        operands, inputs = (*operands, "received"), (*inputs, value(9, 4 * key.numel))
    return Op(name, "backward" if backward else "forward", "", operands, inputs, outputs, attrs)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_ring_takes_its_blocks_one_after_the_other(backward: bool, causal: bool, ranks: int) -> None:
    """The own block as it would be alone, each later one the slower of its two shapes, and more for the merging."""
    own = 4096
    found = ring.price(work(op(own, ranks, causal, backward)), H100, backward_pass=backward)

    def alone(q: int, kv: int, pairs: int) -> float:
        w = work(op(own, 0, causal, backward))
        sizes = {"q": q, "kv": kv, "pairs": pairs}
        w = replace(w, dims=tuple((name, sizes.get(name, size)) for name, size in w.dims))
        return attention.price(w, H100, backward_pass=backward).seconds

    first = attention.price(work(op(own, 0, causal, backward)), H100, backward_pass=backward).seconds
    half = own * own // 2
    later = max(alone(own, own // 2, half), alone(own // 2, own, half)) if causal else alone(own, own, own * own)
    blocks = first + (ranks - 1) * later
    assert blocks < found.seconds < 1.5 * blocks
    merging = sum(term.seconds for term in found.terms if term.name.startswith("merge"))
    assert 0 < found.seconds - blocks <= merging * (1 + 1e-9)


@pytest.mark.parametrize("backward", [False, True])
def test_a_ring_costs_more_than_its_share_of_the_whole(backward: bool) -> None:
    pricer = Pricer(load_system("dgx-h100"), EAGER)
    whole = op(16384, backward=backward)
    share = pricer(whole, work(whole)).seconds / 4
    one = op(4096, 4, backward=backward)
    assert share < pricer(one, work(one)).seconds < 2 * share


def test_bytes_of_a_ring_by_hand() -> None:
    """Own block: q, k, v in, out and logsumexp out. Three later ones: 3/4 of that, and 3/4 of a merge each."""
    own, ranks = 1024, 4
    q, kv, lse = 32 * own * 128 * 2, 8 * own * 128 * 2, 32 * own * 4
    given, result = q + 2 * kv, q + lse
    w = work(op(own, ranks))
    assert w.bytes_read == given + 3 * 3 * (given + 2 * result) // 4
    assert w.bytes_written == result + 3 * 3 * 2 * result // 4


def send_recv(ranks: int, steps: int, stride: int = 1, nbytes: int = 2**24, **more: float) -> Op:
    key = value(0, 1, 8, 1024, 128)
    attrs = (("ranks", ranks), ("stride", stride), ("steps", steps), ("nbytes", nbytes), *more.items())
    return Op("torchperf.send_recv", "forward", "", ("key", "value"), (key, key), (value(1, 16),), attrs)


def seconds(system: System, one: Op) -> float:
    return Pricer(system, EAGER)(one, work(one)).seconds


def test_a_message_takes_a_hop_between_nodes_where_the_ring_leaves_its_node() -> None:
    system = load_system("dgx-h100")
    inside = collective("p2p", 2**24, 2, system, per_node=2).seconds
    outside = collective("p2p", 2**24, 2, system, per_node=1).seconds
    assert inside < outside
    assert seconds(system, send_recv(8, 7)) == pytest.approx(7 * inside)
    assert seconds(system, send_recv(16, 15)) == pytest.approx(15 * outside)
    assert seconds(system, send_recv(2, 1, stride=8)) == pytest.approx(outside)
    assert seconds(system, send_recv(4, 3, stride=2)) == pytest.approx(3 * inside)


def test_a_message_is_what_goes_in_unless_told() -> None:
    one = send_recv(4, 3)
    plain = replace(one, attrs=(("ranks", 4),))
    assert dict(work(plain).dims) == {"ranks": 4, "nbytes": one.inputs[0].nbytes, "steps": 1}
    assert work(one).nbytes == 3 * 2**24


def test_ranks_far_apart_share_a_node_with_fewer_of_their_group() -> None:
    system = load_system("dgx-h100")
    x = value(0, 2**20)

    def gather(stride: int) -> Op:
        attrs = (("ranks", 8), ("stride", stride))
        return Op("torchperf.all_gather", "forward", "", ("self",), (x,), (replace(x, slot=1),), attrs)

    near, far = seconds(system, gather(1)), seconds(system, gather(8))
    assert near == collective("all_gather", x.nbytes, 8, system).seconds
    assert far == collective("all_gather", x.nbytes, 8, system, per_node=1).seconds
    assert near < far


def test_the_most_loaded_rank_takes_longer() -> None:
    """Equal work, priced once; the factor is each op's own."""
    pricer = Pricer(load_system("dgx-h100"), EAGER)
    mean, most = send_recv(4, 3), send_recv(4, 3, load=1.25)
    assert work(mean) == work(most)
    price = pricer(most, work(most))
    assert price.seconds == pytest.approx(1.25 * pricer(mean, work(mean)).seconds)
    assert sum(term.seconds for term in price.terms) == pytest.approx(price.seconds)
