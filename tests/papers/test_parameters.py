"""Parameters of published models, exact, a tied weight counted once."""

from __future__ import annotations

import pytest

import torchperf

PUBLISHED = {
    # sum over the config's shapes; the head is the token embedding
    "gpt2": 124_439_808,
    # the cards of Llama 3.x, and `model.safetensors.index.json` of each: total_size / 2 bytes
    "llama-3.1-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    # arXiv 2401.04088 rounds to 47B; MaxText PR 678 uses this total
    "mixtral-8x7b": 46_702_792_704,
    # arXiv 2412.19437: 671B without the multi-token prediction module
    "deepseek-v3": 671_026_404_352,
    # arXiv 2508.10925 rounds to 116.8B
    "gpt-oss-120b": 116_829_156_672,
}
SEQ = {"gpt2": 1024, "mixtral-8x7b": 1024}


@pytest.mark.parametrize(("model", "parameters"), PUBLISHED.items())
def test_parameters(recorded, model: str, parameters: int) -> None:
    """The same integer from `inspect`, from its first row (the whole model), and from `estimate`."""
    capture = recorded(model, SEQ.get(model, 4096))
    inspection = torchperf.inspect(capture)
    assert inspection.parameters == parameters
    assert inspection.trainable_parameters == parameters
    assert (inspection.rows[0].module, inspection.rows[0].parameters) == ("", parameters)
    assert torchperf.estimate(capture, gpu="b200-sxm-180gb").parameters == parameters


@pytest.mark.parametrize("model", PUBLISHED)
def test_every_backward_op_has_a_module_and_nothing_is_guessed(recorded, model: str) -> None:
    facts = recorded(model, SEQ.get(model, 4096)).facts
    assert (facts.unattributed, facts.guesses) == (0, ())


@pytest.mark.parametrize("model", ["gpt2", "llama-3.1-8b", "llama-3.2-1b"])
def test_sizes_stay_free(captured, model: str) -> None:
    """A graph for batch 1 and one for every other batch, each for every length up to the model's positions."""
    facts = captured(model).facts
    assert facts.fixed == ""
    assert dict(facts.sizes).keys() == {"batch", "seq"}
    positions = dict(facts.limits)["seq"]
    assert sorted(graph.facts.ranges for graph in captured(model).graphs) == [
        (("batch", 1, 1, 0), ("seq", 2, positions, 0)),
        (("batch", 2, -1, 0), ("seq", 2, positions, 0)),
    ]
