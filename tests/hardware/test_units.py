"""Units: what goes in comes out, and a unit belongs to one quantity."""

from __future__ import annotations

import pytest

from torchperf.hardware.units import (
    BANDWIDTH,
    BYTES,
    COUNT,
    DURATION,
    FLOP_RATE,
    FREQUENCY,
    POWER,
    SHARE,
    Quantity,
    from_base,
    to_base,
)

QUANTITIES = (FLOP_RATE, BYTES, BANDWIDTH, DURATION, FREQUENCY, POWER, SHARE, COUNT)


@pytest.mark.parametrize("quantity", QUANTITIES, ids=lambda quantity: quantity.name)
@pytest.mark.parametrize("value", [1e-3, 1.0, 79.35, 989.4, 12345.6789])
def test_units_round_trip(quantity: Quantity, value: float) -> None:
    for unit in quantity.units:
        assert from_base(to_base(value, unit, quantity), unit, quantity) == pytest.approx(value, rel=1e-15)


def test_gb_and_gib_differ() -> None:
    assert to_base(80, "GB", BYTES) == 80e9
    assert to_base(80, "GiB", BYTES) == 80 * 2**30
    assert to_base(400, "Gbit/s", BANDWIDTH) == to_base(50, "GB/s", BANDWIDTH) == 50e9
    assert to_base(1.65, "us", DURATION) == pytest.approx(1.65e-6)


def test_a_unit_of_another_quantity_is_refused() -> None:
    with pytest.raises(KeyError):
        to_base(1, "GB", BANDWIDTH)
