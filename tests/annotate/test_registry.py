"""How a rule is found, and what happens where there is none."""

from __future__ import annotations

import subprocess
import sys
import timeit
from collections.abc import Callable

import pytest
import torch

from torchperf.annotate import KINDS, RULES, rule, work
from torchperf.annotate.registry import lookup
from torchperf.graph.op import Op

Make = Callable[..., Op]


def test_an_op_without_a_rule_is_unknown_and_not_free(make: Make) -> None:
    found = work(make("mylib.mystery.default", {"x": (2, 3), "y": (3,)}, [(2, 3)]))
    assert (found.kind, found.engine, found.known, found.flops) == ("unknown", "none", False, 0)
    assert (found.dtype, found.bytes_read, found.bytes_written) == ("bf16", 18, 12)


def test_an_unknown_op_without_tensors(make: Make) -> None:
    assert not work(make("mylib.nothing.default", {}, [])).known


def test_registering_twice_raises() -> None:
    with pytest.raises(ValueError, match=r"`aten\.mm` has a rule already"):
        rule("aten.mm")(lambda op: work(op))


def test_an_overload_goes_before_its_packet(make: Make) -> None:
    assert work(make("aten.max.default", {"self": (8,)}, [()])).kind == "reduction"
    assert work(make("aten.max.dim", {"self": (8, 2)}, [(2,), ("i64", 2)])).kind == "reduction"
    assert work(make("aten.max.other", {"self": (8,), "other": (8,)}, [(8,)])).kind == "pointwise"


def test_in_place_twins_have_the_rule_of_their_base() -> None:
    assert lookup("aten.add_.Tensor") is lookup("aten.add.Tensor")
    assert lookup("aten.__and__.Tensor") is not None
    assert lookup("aten.nonsense_.default") is None


def test_an_out_operand_is_written_and_not_read(make: Make) -> None:
    op = make("aten.mm.out", {"self": (2, 3), "mat2": (3, 5), "out": (2, 5)}, [(2, 5)])
    assert (work(op).bytes_read, work(op).bytes_written) == (42, 20)


def test_every_rule_names_an_op_of_torch() -> None:
    """A name that torch does not have is a typing error: its op would be unknown."""
    packets, overloads = set(), set()
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name.replace("::", ".")
        packets.add(name)
        overloads.add(f"{name}.{schema.overload_name or 'default'}")
    named = [name for name in RULES if name.startswith("aten.")]
    assert not [n for n in named if n not in packets and n not in overloads and f"{n}_" not in packets]


def test_every_rule_says_what_it_counts() -> None:
    assert not [name for name, function in RULES.items() if not (function.__doc__ or "").strip()]


def test_kinds_are_distinct() -> None:
    assert len(set(KINDS)) == len(KINDS)


def test_an_op_without_outputs_writes_only_in_place(make: Make) -> None:
    assert work(make("aten.equal.default", {"self": (8,), "other": (8,)}, [])).bytes_written == 0
    assert work(make("aten._foreach_zero_.default", {"self": [(8,), (4,)]}, [])).bytes_written == 24


def test_the_room_imports_no_torch() -> None:
    code = "import sys, torchperf.annotate; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_rule_costs_microseconds(make: Make) -> None:
    """At most 10 us on a quiet machine; ten times that here, since others share it."""
    ops = [
        make("aten.mm.default", {"self": (2, 3), "mat2": (3, 5)}, [(2, 5)]),
        make("aten.add.Tensor", {"self": (2, 3), "other": (2, 3)}, [(2, 3)]),
        make("aten.view.default", {"self": (2, 3)}, [(6,)]),
    ]
    best = min(timeit.repeat(lambda: [work(op) for op in ops], number=500, repeat=5))
    assert best / 500 / len(ops) < 100e-6
