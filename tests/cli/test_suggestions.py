"""Suggestions: what each one tells is what the command says when its flags are added, and the best comes first."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torchperf
from torchperf.graph.errors import TorchperfError
from torchperf.graph.inference import InferencePlan, InferencePrecision
from torchperf.suggestions import GAIN, MOST
from torchperf.suggestions_inference import MOST as MOST_SERVING
from torchperf.suggestions_inference import Serving
from torchperf.suggestions_ways import FASTER, SAVERS, Way

Ask = Callable[..., dict[str, Any]]
ONE = ("--gpu", "h100-sxm-80gb", "--seq-len", 512)
EIGHT = (*ONE, "--num-gpus", 8)
SETTINGS = {
    "one, ample": (*ONE, "--micro-batch", 4),
    "one, recomputed": (*ONE, "--micro-batch", 64, "--recompute", "full"),
    "one, tight": (*ONE, "--micro-batch", 9472),
    "one, too much": (*ONE, "--micro-batch", 10240),
    "far too much": (*ONE, "--micro-batch", 32768),
    "tp": (*EIGHT, "--tp", 2, "--micro-batch", 8, "--runtime", "megatron-core", "--zero", 1),
    "dp given": (*EIGHT, "--tp", 2, "--dp", 4, "--global-batch", 64, "--micro-batch", 8, "--zero", 2),
    "without GPUs": (*ONE, "--tp", 2, "--micro-batch", 16),
    "fsdp": (*EIGHT, "--micro-batch", 8, "--runtime", "fsdp-eager"),
    "fsdp, too much": (*EIGHT, "--micro-batch", 20480, "--runtime", "fsdp-eager"),
    "pipeline": (*EIGHT, "--pp", 2, "--micro-batch", 4, "--global-batch", 128, "--sequence-parallel", "--tp", 2),
}
SERVING = {
    "batch": ("--batch", 8),
    "concurrency": ("--concurrency", 16, "--num-gpus", 2),
    "rate": ("--request-rate", 4),
    "too much": ("--batch", 8, "--gpu-memory-utilization", 0.02),
}
CHECKED = ("verdict", "step_time_s", "tokens_per_step", "tokens_per_s_per_gpu", "num_gpus")
CHECKED_SERVING = ("verdict", "ttft_s", "tpot_s", "tokens_per_s_per_gpu", "max_concurrency", "num_gpus")


@pytest.fixture(scope="module")
def model(shallow, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of three small layers on disk, with free sizes."""
    file = tmp_path_factory.mktemp("graphs") / "small.json"
    torchperf.save(shallow("llama"), file)
    return file


@pytest.fixture
def ask(command, model: Path) -> Ask:
    def answer(*args: object, of: object = model) -> dict[str, Any]:
        result = command("estimate", of, *args, "--json", "-")
        assert result.exit_code in (0, 1), result.stderr
        return json.loads(result.stdout)

    return answer


def best_first(found: list[dict[str, Any]]) -> bool:
    rates = [s["tokens_per_s_per_gpu"] for s in found]
    return rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_effect_told_is_that_of_the_flags(ask: Ask, name: str) -> None:
    args = SETTINGS[name]
    now = ask(*args, "--suggest")
    assert len(now["suggestions"]) <= MOST
    for told in now["suggestions"]:
        if told["flags"]:
            then = ask(*args, *told["flags"].split())
            assert {k: told[k] for k in CHECKED} == {k: then[k] for k in CHECKED}, told["flags"]
            assert told["device_bytes"] == then["memory_bytes"]["device"]
            assert told["logits_loss_bytes"] == then["memory_bytes"]["logits_loss"]


@pytest.mark.parametrize("name", SETTINGS)
def test_what_brings_most_comes_first(ask: Ask, name: str) -> None:
    now = ask(*SETTINGS[name], "--suggest")
    plans = [s for s in now["suggestions"] if s["flags"]]
    if now["verdict"] == "does not fit":
        fitting = [s for s in plans if s["verdict"] != "does not fit"]
        assert plans[: len(fitting)] == fitting
        assert best_first(fitting)
        assert all(s["device_bytes"] < now["memory_bytes"]["device"] for s in plans)
        return
    assert all(s["verdict"] != "does not fit" for s in plans)
    quick = [s for s in plans if now["tokens_per_s_per_gpu"] < (1 - GAIN) * s["tokens_per_s_per_gpu"]]
    assert plans[: len(quick)] == quick
    assert best_first(quick)
    assert all(
        now["verdict"] == "tight" and s["verdict"] == "fits" and s["device_bytes"] < now["memory_bytes"]["device"]
        for s in plans[len(quick) :]
    )


def test_the_settings_meet_every_verdict(ask: Ask) -> None:
    found = {name: ask(*args)["verdict"] for name, args in SETTINGS.items()}
    assert set(found.values()) == {"fits", "tight", "does not fit"}
    assert found["one, tight"] == "tight"


def test_two_changes_at_once_where_one_is_not_enough(ask: Ask) -> None:
    found = ask(*SETTINGS["far too much"])["suggestions"]
    both = [s for s in found if "," in s["change"]]
    assert both
    assert all(s["verdict"] != "does not fit" for s in both)
    assert all(s["verdict"] == "does not fit" for s in found if s not in both)


def test_other_plans_are_priced_where_asked_for_or_needed(ask: Ask, shallow) -> None:
    assert ask(*SETTINGS["one, ample"])["suggestions"] == []
    assert ask(*SETTINGS["one, ample"], "--suggest")["suggestions"]
    assert ask(*SETTINGS["one, too much"])["suggestions"]
    given = {"gpu": "h100-sxm-80gb", "seq_len": 512, "micro_batch": 10240}
    assert torchperf.estimate(shallow("llama"), **given).suggestions
    assert torchperf.estimate(shallow("llama"), **given, suggest=False).suggestions == ()
    assert torchperf.estimate(shallow("llama"), **given, suggest=False).advice == ()


def test_recompute_is_dropped_where_memory_is_ample(ask: Ask) -> None:
    now = ask(*SETTINGS["one, recomputed"], "--suggest")
    (told,) = (s for s in now["suggestions"] if s["flags"] == "--recompute none")
    assert told["step_time_s"] < now["step_time_s"]
    assert told["device_bytes"] > now["memory_bytes"]["device"]
    assert told["text"].startswith("under `--recompute none` it fits: ")
    assert "% less time a token" in told["text"]


def test_a_forward_pass_has_none(ask: Ask) -> None:
    assert ask(*ONE, "--mode", "forward", "--suggest", of="gpt2")["suggestions"] == []


def test_a_fused_loss_saves_at_most_what_is_held(ask: Ask) -> None:
    now = ask(*ONE, "--micro-batch", 16, "--suggest", of="gpt2")
    (told,) = (s for s in now["suggestions"] if s["change"] == "fused loss")
    saved = now["memory_bytes"]["device"] - told["device_bytes"]
    assert 0 < saved <= 1.1 * now["memory_bytes"]["logits_loss"]
    assert (told["flags"], told["step_time_s"], told["logits_loss_bytes"]) == ("", None, 0)
    assert not any("cross-entropy" in line for line in now["advice"])


def test_sizes_that_are_fixed_stay(ask: Ask, recorded, tmp_path: Path) -> None:
    """A graph of one size has no other micro-batch to suggest."""
    torchperf.save(recorded("gpt2", 64, n_layer=2), tmp_path / "fixed.json")
    now = ask("--gpu", "h100-sxm-80gb", "--suggest", of=tmp_path / "fixed.json")
    assert not any("--micro-batch" in s["flags"] for s in now["suggestions"])


PLANS = [
    Way(torchperf.graph.plan.Plan(**plan), gpus, "bf16-mixed", 4, shards)
    for plan in (
        {}, {"tp": 2}, {"tp": 2, "dp": 2}, {"pp": 2, "global_batch": 64}, {"dp_shard": 2, "dp": 8},
        {"recompute": "full"},
    )
    for gpus in (None, 8, 16)
    for shards in (False, True)
]  # fmt: skip


@pytest.mark.parametrize("name", SAVERS | FASTER)
def test_a_change_keeps_gpus_and_global_batch_or_says_so(name: str) -> None:
    change, tried = (SAVERS | FASTER)[name], 0
    for asked in PLANS:
        try:
            before = asked.resolved()
            way = change(asked)
            after = way.resolved() if way else None
        except TorchperfError:
            continue
        if way is None or after is None:
            continue
        tried += 1
        assert way.flags(asked)
        if not name.startswith("GPUs"):
            assert after.num_gpus == before.num_gpus
        if asked.plan.global_batch:
            assert after.global_batch == before.global_batch
        elif not name.startswith("GPUs") and after.global_batch != before.global_batch:
            assert before.global_batch % (after.micro_batch * after.dp)
    assert tried


@pytest.mark.parametrize("name", SERVING)
def test_serving_otherwise_is_what_its_flags_say(ask: Ask, name: str) -> None:
    args = ("--mode", "inference", "--gpu", "h100-sxm-80gb", "--input-len", 256, "--output-len", 32, *SERVING[name])
    now = ask(*args, "--suggest", of="gpt2")
    assert len(now["suggestions"]) <= MOST_SERVING
    assert name == "rate" or now["suggestions"]
    for told in now["suggestions"]:
        then = ask(*args, *told["flags"].split(), of="gpt2")
        assert {k: told[k] for k in CHECKED_SERVING} == {k: then[k] for k in CHECKED_SERVING}, told["flags"]
        assert told["verdict"] != "does not fit"
        gains = told["tokens_per_s_per_gpu"] > now["tokens_per_s_per_gpu"] or told["tpot_s"] < now["tpot_s"]
        assert gains or now["verdict"] != "fits"


def test_flags_of_serving() -> None:
    asked = Serving(InferencePrecision(), InferencePlan(tp=2, ep=2), 1, None)
    other = Serving(InferencePrecision("fp8", None, "fp8"), InferencePlan(tp=4, ep=4), 2, None)
    assert other.flags(asked) == "--tp 4 --ep 4 --precision fp8 --kv-precision fp8 --batch 2"
    counted = Serving(InferencePrecision(), InferencePlan(tp=4, ep=4), 1, None, counted=True)
    assert counted.flags(Serving(InferencePrecision(), InferencePlan(tp=2, ep=2), 1, None, counted=True)) == (
        "--tp 4 --ep 4 --num-gpus 4"
    )
