"""The default model: converted without loss, served as transformers computes it, exact in int8."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from dspark.engines.engine_json import TargetRecord, read_record
from dspark.engines.paged_runner import PagedRunner, RaggedBatch
from dspark_build.checkpoints import default
from dspark_build.models.weights import read_tensors
from dspark_build.probe import Probe
from dspark_client import paths
from tokenizers import Tokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

pytestmark = pytest.mark.model

TOLERANCE = 1e-3
TEXTS = (
    "Hello, world!",
    "  leading and trailing  ",
    "It's 1234567890, isn't it? 3.14159 x10",
    "def f(n):\n\treturn 1 if n < 2 else n * f(n - 1)\n\n\n# done\r\n",
    "Größe, naïve café, Ωμέγα, Привет мир, 你好，世界, こんにちは, مرحبا, हिन्दी",
    "👩‍👩‍👧‍👦 🙂🏽 e\u0301 \u00a0\u200b\ufeff",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|><repo_name><empty_output> <|im_end|> <|nothing|>",
    "a" * 300 + " " * 50 + "\n" * 20,
    "",
)


def without_exotic_numerals(text: str) -> str:
    """transformers ignores the file's pre-tokenisation ("smollm"), which shows at numerals other than 0 to 9."""
    return "".join(character for character in text if character.isascii() or not character.isnumeric())


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    return default.prepare_default(paths.home())


def engine(name: str) -> tuple[Path, TargetRecord]:
    folder = paths.engine_folder(default.NAME, name).target
    if not folder.is_dir():
        pytest.skip(f"needs the {name} engine: dspark build --engine {name}")
    return folder, read_record(folder, TargetRecord)


def test_the_tokenizer_is_the_one_transformers_reads_from_the_same_file(checkpoint):
    source = default._locate()
    reference = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    random = np.random.default_rng(0)
    scrambled = ["".join(map(chr, random.integers(32, 0x2FFF, 80))) for _ in range(50)]
    for text in (*TEXTS, *map(without_exotic_numerals, scrambled)):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == reference.encode(text, add_special_tokens=False), text
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.get_vocab() == reference.get_vocab()


def test_every_numeral_is_a_piece_of_its_own(checkpoint):
    """As the model was trained, and as llama.cpp reads the same file."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    assert tokenizer.encode("in 2026 ½ ²").tokens == ["in", "Ġ", "2", "0", "2", "6", "Ġ", "Â½", "Ġ", "Â²"]


def test_the_weights_are_those_transformers_dequantises(checkpoint):
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    with torch.device("meta"):
        empty = transformers.AutoModelForCausalLM.from_config(config)
    reference = load_gguf_checkpoint(str(default._locate()), return_tensors=True, model_to_load=empty)["tensors"]
    names = []
    for name, tensor in read_tensors(checkpoint):
        assert torch.equal(tensor, torch.as_tensor(reference[name])), name
        names.append(name)
    assert sorted(names) == sorted(reference)


def test_fp32_logits_are_those_of_transformers_at_once_in_chunks_and_among_neighbours(checkpoint):
    folder, record = engine("fp32")
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokens = np.array(tokenizer.encode("".join(TEXTS)).ids[:200], np.int32)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.no_grad():
        expected = model(torch.tensor(tokens[None]).long()).logits[0].numpy()
    del model
    runner = PagedRunner(folder, record, record.rows)
    random, worst = np.random.default_rng(1), 0.0
    for sizes in ([200], [128, 72], None):
        position = 0
        while position < tokens.size:
            size = sizes.pop(0) if sizes else int(random.integers(1, 9))
            own, stranger = tokens[position : position + size], tokens[: random.integers(1, 30)]
            batch = RaggedBatch(
                np.array([0, 1], np.int32),
                np.array([position, 0], np.int32),
                np.array([own.size, stranger.size], np.int32),
                np.concatenate([own, stranger]),
            )
            rows = np.arange(own.size, dtype=np.int32)
            logits = runner.run(batch, rows, rows[:0]).logits
            worst = max(worst, float(np.abs(logits - expected[position : position + own.size]).max()))
            # Half of the time the last token was a rejected draft: step back over it.
            position += own.size - (1 if own.size > 1 and random.random() < 0.5 and position + size < 200 else 0)
    print(f"largest logit difference to transformers: {worst:.1e}")
    assert worst < TOLERANCE


@pytest.mark.parametrize("name", ["int8", "fp32"])
def test_logits_do_not_depend_on_the_batch(name):
    folder, record = engine(name)
    assert record.exact
    assert Probe(folder, record, record.rows, seed=11).first_difference() == 0.0
