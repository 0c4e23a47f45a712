"""Which models other than causal language models are captured: 70 named ones, each in a process of its own.

    python scripts/coverage_base.py --out base.jsonl       the whole list, as a Markdown table on stdout
    python scripts/coverage_base.py vit dlrm               some of it
    python scripts/coverage_base.py --out base.jsonl --bar 60

A model is ok where its capture in mode `train` (forward and backward; the optimizer is added by the estimate) and an
estimate of it end well. Lines of `--out` that are there already are not run again. `ops`, `parameters` and the FLOPs
are of one step at the default sizes. `by rule` is the share of bytes moved by operators that have a rule. `reached` is
the share of trainable parameters that got a gradient. `of modules` is the captured FLOPs of forward (and of what is
computed again) over those that the linear and convolution modules' own calls make: less than 1 is a loss, what is more
is attention and products outside of such modules. Exit code 1 where fewer than `--bar` are ok.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ZOO = ROOT / "tests" / "frontend" / "zoo"
LIMIT = 240.0  # seconds a model
GPU = "h100-sxm-80gb"


# group -> model type and head, `type:head`; the name of a model is its type but where CONFIGS tells another type
GROUPS = {
    "encoder": """
        bert:BertForMaskedLM roberta:RobertaForMaskedLM xlm-roberta:XLMRobertaForMaskedLM electra:ElectraForPreTraining
        albert:AlbertForMaskedLM distilbert:DistilBertForMaskedLM mpnet:MPNetForMaskedLM deberta:DebertaForMaskedLM
        deberta-v2:DebertaV2ForMaskedLM deberta-v3-base:DebertaV2ForMaskedLM modernbert:ModernBertForMaskedLM
        longformer:LongformerForMaskedLM""",
    "encoder-decoder": """
        t5:T5ForConditionalGeneration mt5:MT5ForConditionalGeneration bart:BartForConditionalGeneration
        mbart:MBartForConditionalGeneration pegasus:PegasusForConditionalGeneration marian:MarianMTModel
        led:LEDForConditionalGeneration whisper:WhisperForConditionalGeneration
        blenderbot:BlenderbotForConditionalGeneration m2m_100:M2M100ForConditionalGeneration
        prophetnet:ProphetNetForConditionalGeneration""",
    "vision": """
        vit:ViTForImageClassification deit:DeiTForImageClassification beit:BeitForImageClassification
        swin:SwinForImageClassification swinv2:Swinv2ForImageClassification convnext:ConvNextForImageClassification
        resnet:ResNetForImageClassification efficientnet:EfficientNetForImageClassification
        mobilenet_v2:MobileNetV2ForImageClassification dinov2:Dinov2ForImageClassification
        segformer:SegformerForSemanticSegmentation detr:DetrForObjectDetection vit_mae:ViTMAEForPreTraining
        videomae:VideoMAEForVideoClassification""",
    "image and text": """
        clip:CLIPModel siglip:SiglipModel align:AlignModel blip:BlipForConditionalGeneration clap:ClapModel""",
    "vision-language": """
        llava:LlavaForConditionalGeneration llava_next:LlavaNextForConditionalGeneration
        qwen2_vl:Qwen2VLForConditionalGeneration qwen2_5_vl:Qwen2_5_VLForConditionalGeneration
        qwen3_vl:Qwen3VLForConditionalGeneration gemma3:Gemma3ForConditionalGeneration
        internvl:InternVLForConditionalGeneration idefics3:Idefics3ForConditionalGeneration
        smolvlm:SmolVLMForConditionalGeneration paligemma:PaliGemmaForConditionalGeneration
        mistral3:Mistral3ForConditionalGeneration blip-2:Blip2ForConditionalGeneration""",
    "speech": """
        wav2vec2:Wav2Vec2ForCTC wav2vec2-conformer:Wav2Vec2ConformerForCTC hubert:HubertForCTC wavlm:WavLMForCTC
        speech_to_text:Speech2TextForConditionalGeneration moonshine:MoonshineForConditionalGeneration
        audio-spectrogram-transformer:ASTForAudioClassification""",
    "plain PyTorch": """
        dit unet dlrm lora checkpoint checkpoint_reentrant custom_autograd autocast accumulation""",
}  # fmt: skip

# what replaces the default config: another size of the same type, or what the default leaves out or does not make fit
_SIGLIP = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
CONFIGS: dict[str, dict[str, Any]] = {
    "deberta-v3-base": {
        "model_type": "deberta-v2", "vocab_size": 128100, "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "intermediate_size": 3072, "relative_attention": True, "position_buckets": 256,
        "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": "p2c|c2p",
        "position_biased_input": False, "type_vocab_size": 0,
    },
    "detr": {  # its default backbone is of another package
        "use_timm_backbone": False, "use_pretrained_backbone": False,
        "backbone_config": {"model_type": "resnet", "out_features": ["stage4"]},
    },
    # vision towers as the published checkpoints have them, where the default does not fit the text model
    "gemma3": {"vision_config": {"model_type": "siglip_vision_model", "image_size": 896, "patch_size": 14, **_SIGLIP}},
    "idefics3": {"vision_config": {"image_size": 364, "patch_size": 14, **_SIGLIP}},
    "smolvlm": {
        "scale_factor": 4,
        "vision_config": {
            "image_size": 512, "patch_size": 16, "hidden_size": 768, "intermediate_size": 3072,
            "num_hidden_layers": 12, "num_attention_heads": 12,
        },
    },
    "qwen3_vl": {"vision_config": {"out_hidden_size": 4096}},
    "blip-2": {"image_token_index": 50265},
    "wav2vec2-conformer": {"vocab_size": 32},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Model:
    """A transformers class with its default config but for CONFIGS; or a file of tests/frontend/zoo, without a head."""

    name: str
    group: str
    head: str


MODELS = tuple(
    Model(name, group, head)
    for group, words in GROUPS.items()
    for name, _, head in (word.partition(":") for word in words.split())
)


def source(model: Model, folder: Path) -> str:
    """MODEL as the command line takes it."""
    if not model.head:
        return str(ZOO / f"{model.name}.py")
    place = folder / model.name
    place.mkdir()
    config = {"model_type": model.name, "architectures": [model.head], **CONFIGS.get(model.name, {})}
    (place / "config.json").write_text(json.dumps(config))
    return str(place)


def measured(model: Model, text: str) -> dict[str, Any]:
    """One line of the table; raises what the capture raises."""
    import torchperf
    from torchperf.annotate import works

    start = time.perf_counter()
    capture = torchperf.capture(text)
    graph = capture.bind(**dict(capture.facts.sizes))
    facts = graph.facts
    found: dict[str, Any] = {
        "seconds": time.perf_counter() - start,
        "ops": graph.num_ops,
        "sizes": dict(graph.bound or ()),
        "fixed": facts.fixed,
        "guesses": list(facts.guesses),
        "assumptions": list(facts.assumptions),
        "unattributed": facts.unattributed,
    }
    trainable = [p for p in facts.parameters if p.trainable]
    found["parameters"] = sum(p.numel for p in facts.parameters)
    found["reached"] = sum(p.numel for p in trainable if p.gradient) / max(1, sum(p.numel for p in trainable))
    found["not_reached"] = [p.names[0] for p in trainable if not p.gradient][:40]
    moved = ruled = 0
    flops: dict[str, int] = {}
    without: dict[str, int] = {}
    rows = zip(graph.blocks, graph.counts, works(graph), strict=True)
    for block, count, row in rows:
        for op, work in zip(block.ops, row, strict=True):
            moved += count * work.nbytes
            ruled += count * work.nbytes if work.known else 0
            if not work.known:
                without[op.name] = without.get(op.name, 0) + count
            if work.engine == "matrix":
                flops[op.phase] = flops.get(op.phase, 0) + count * work.flops_noncausal
    found.update({"flops": flops, "bytes_by_rule": ruled / max(1, moved), "without_rule": without})
    answer = torchperf.estimate(capture, gpu=GPU)
    found["step_time_s"] = answer.step_time_s
    modules = dense(text, dict(graph.bound or ()))
    found["over_modules"] = (flops.get("forward", 0) + flops.get("recompute", 0)) / modules if modules else None
    return found


def dense(text: str, sizes: dict[str, int]) -> float:
    """FLOPs of every call of a linear or convolution module, by the size of its weight and the rows of its output."""
    import torch
    from torch import nn

    from torchperf.frontend.load import resolve
    from torchperf.frontend.run import record
    from torchperf.frontend.subject_of import subject_of

    subject, _ = subject_of(resolve(text))
    convolutions = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    total = 0

    def count(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal total
        if isinstance(module, (nn.Linear, *convolutions)) and isinstance(output, torch.Tensor):
            outputs = module.weight.shape[0]
            total += 2 * module.weight.numel() * (output.numel() // outputs)

    handle = nn.modules.module.register_module_forward_hook(count)
    try:
        record(subject, sizes, "train")
    finally:
        handle.remove()
    return float(total)


def child(name: str) -> None:
    """Print the line of one model."""
    model = next(m for m in MODELS if m.name == name)
    line: dict[str, Any] = {"model": name, "group": model.group, "ok": False, "failure": ""}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHPERF_CACHE"] = str(Path(folder) / "cache")
        try:
            line.update(measured(model, source(model, Path(folder))))
            line["ok"] = True
        except Exception as error:
            reasons = "; ".join(f"{key}: {value}" for key, value in getattr(error, "facts", ()))
            line["failure"] = f"{type(error).__name__}: {str(error).splitlines()[0]} ({reasons})"
    sys.stdout.write(json.dumps(line) + "\n")


def run(name: str, limit: float) -> dict[str, Any]:
    """The line of one model, from a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--one", name]
    failed = {"model": name, "group": next(m.group for m in MODELS if m.name == name), "ok": False}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return {**failed, "failure": f"more than {limit:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"model"')]
    if not lines:
        return {**failed, "failure": f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def table(lines: list[dict[str, Any]]) -> str:
    """The lines as Markdown, and how many are ok."""
    head = (
        "model", "ok", "ops", "s", "parameters", "TFLOPs", "of modules", "by rule", "reached", "guesses", "sizes",
        "failure",
    )  # fmt: skip
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for line in lines:
        if not line["ok"]:
            rows.append(f"| {line['model']} | no |" + " |" * 9 + f" {line['failure']} |")
            continue
        ratio = line["over_modules"]
        cells = (
            line["model"], "yes", f"{line['ops']:,}", f"{line['seconds']:.1f}", f"{line['parameters'] / 1e6:,.1f} M",
            f"{sum(line['flops'].values()) / 1e12:.4g}", "" if ratio is None else f"{ratio:.3f}",
            f"{line['bytes_by_rule']:.1%}", f"{line['reached']:.2%}", str(len(line["guesses"])),
            ", ".join(f"{name} {size}" for name, size in line["sizes"].items()) + (" fixed" if line["fixed"] else ""),
            "",
        )  # fmt: skip
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join([*rows, "", f"{sum(line['ok'] for line in lines)} of {len(lines)} ok"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="names of the list; all of it where none is given")
    parser.add_argument("--out", type=Path, help="JSON lines, one a model; those that are there are kept")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds a model")
    parser.add_argument("--bar", type=int, default=0, help="exit code 1 where fewer are ok")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        child(given.one)
        return 0
    wanted = given.models or [m.name for m in MODELS]
    if unknown := set(wanted) - {m.name for m in MODELS}:
        parser.error(f"not in the list: {', '.join(sorted(unknown))}")
    known: dict[str, dict[str, Any]] = {}
    if given.out and given.out.exists():
        known = {line["model"]: line for line in map(json.loads, given.out.read_text().splitlines())}
    for name in wanted:
        if name not in known:
            known[name] = run(name, given.limit)
            sys.stderr.write(f"{name}: {'ok' if known[name]['ok'] else known[name]['failure']}\n")
            if given.out:
                with given.out.open("a") as file:
                    file.write(json.dumps(known[name]) + "\n")
    lines = [known[name] for name in wanted]
    sys.stdout.write(table(lines) + "\n")
    return int(sum(line["ok"] for line in lines) < given.bar)


if __name__ == "__main__":
    sys.exit(main())
