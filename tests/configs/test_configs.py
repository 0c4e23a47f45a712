"""Every bundled config is well formed, names its source and builds the model it claims to be."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from torchperf import configs
from torchperf.graph.errors import TorchperfError

# Totals published beside the models (safetensors metadata or papers), tied weights counted once.
PUBLISHED = {
    "gpt2": 124_439_808,
    "llama-2-7b": 6_738_415_616,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "mixtral-8x7b": 46_702_792_704,
    "deepseek-v3": 671_026_404_352,
    "gpt-oss-120b": 116_829_156_672,
}


def num_parameters(name):
    """Parameters of the bundled model, built on the meta device, each shared one counted once."""
    content = configs.load(name)
    config = transformers.AutoConfig.for_model(content.pop("model_type"), **content)
    with torch.device("meta"):
        model = getattr(transformers, config.architectures[0])(config)
    assert all(parameter.is_meta for parameter in model.parameters())
    return sum(parameter.numel() for parameter in model.parameters())  # parameters() yields a shared one once


@pytest.mark.parametrize("name", configs.names())
def test_parameters_equal_the_note(name):
    assert num_parameters(name) == configs.notes(name)["parameters"]


@pytest.mark.parametrize(("name", "total"), PUBLISHED.items())
def test_notes_equal_the_published_totals(name, total):
    assert configs.notes(name)["parameters"] == total


@pytest.mark.parametrize("name", configs.names())
def test_file_is_well_formed(name):
    own = configs.notes(name)
    assert set(own) - {"note"} == {"source", "parameters"}
    assert own["source"].startswith("https://")
    assert own.get("note", "says something")

    content = configs.load(name)
    assert "torchperf" not in content
    assert isinstance(content["model_type"], str)
    assert len(content["architectures"]) == 1
    assert "quantization_config" not in content


@pytest.mark.parametrize("name", configs.names())
def test_file_is_plain_json(name):
    def refuse(constant):
        raise ValueError(constant)

    text = configs.path(name).read_text(encoding="utf-8")
    json.loads(text, parse_constant=refuse)
    assert text.endswith("}\n")


def test_names():
    names = configs.names()
    assert len(names) >= 32
    assert len(set(names)) == len(names)
    assert all(name == name.lower() and "_" not in name for name in names)
    sizes = ["125m", "350m", "760m", "1.3b", "2.7b", "6.7b", "13b", "175b"]
    family = [name for name in names if name.startswith("gpt3-")]
    assert [name.removeprefix("gpt3-") for name in family] == sizes


def test_load_gives_a_fresh_dict_each_time():
    configs.load("gpt2")["n_layer"] = 0
    configs.notes("gpt2")["parameters"] = 0
    assert configs.load("gpt2")["n_layer"] == 12
    assert configs.notes("gpt2")["parameters"] == PUBLISHED["gpt2"]


@pytest.mark.parametrize("use", [configs.path, configs.load, configs.notes])
def test_unknown_name_suggests_the_nearest(use):
    with pytest.raises(TorchperfError, match=r"no bundled config is named `llama-3\.1-8`") as caught:
        use("llama-3.1-8")
    assert "`llama-3.1-8b`" in caught.value.hint


@pytest.mark.parametrize("name", ["../configs/gpt2", "gpt2.json", "", "zzzzzz", "GPT2"])
def test_only_exact_names_are_files(name):
    with pytest.raises(TorchperfError, match="no bundled config") as caught:
        configs.path(name)
    assert "torchperf models" in caught.value.hint


def test_needs_no_torch():
    code = (
        "import sys; from torchperf import configs; configs.load('gpt2');"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    root = Path(configs.__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)
