"""The small models of the embedded pair: a cut tokenizer, its embeddings, the rows and the training loop."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "embedded"))

import dialogues
import make_policy
import small
import texts

TEXTS = [
    "What was the blue kettle like in 1994?",
    "The kettle was on the blue stove, I think.",
] * 20


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A folder with a byte-level tokenizer and random embeddings, in the form of SmolLM2's."""
    folder = tmp_path_factory.mktemp("base")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    weights = torch.randn(tokenizer.get_vocab_size(), 64, generator=torch.Generator().manual_seed(0))
    save_file({"model.embed_tokens.weight": weights}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def tokenizer(base):
    return small.cut_tokenizer(base, TEXTS, 280)


def test_a_cut_tokenizer_has_the_marks_first_and_the_wanted_size(tokenizer):
    assert tokenizer.get_vocab_size() == 280
    assert [tokenizer.token_to_id(mark) for mark in small.MARKS] == [0, 1, 2, 3, 4]


def test_the_whole_model_with_fewer_tokens_predicts_what_it_did(tmp_path, tokenizer, base):
    full = Tokenizer.from_file(str(base / "tokenizer.json"))
    shape = LlamaConfig(
        vocab_size=full.get_vocab_size(),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    before = LlamaForCausalLM(shape).eval()
    before.save_pretrained(tmp_path)
    full.save(str(tmp_path / "tokenizer.json"))
    model = small.whole_model(tmp_path, tokenizer).eval()
    marks = len(small.MARKS)
    kept = [full.token_to_id(tokenizer.id_to_token(n)) for n in range(marks, tokenizer.get_vocab_size())]
    ids = torch.tensor(tokenizer.encode("What was the blue kettle like?").ids)
    expected = before(input_ids=torch.tensor(kept)[ids - marks][None]).logits[..., kept]
    assert torch.allclose(model(input_ids=ids[None]).logits[..., marks:], expected, atol=1e-5)
    assert model.config.vocab_size == 280 and model.config.eos_token_id == tokenizer.token_to_id(small.END)


def test_a_teacher_with_other_tokens_is_refused(tokenizer, base):
    with pytest.raises(SystemExit, match="another tokenizer"):
        small.load_teacher(base, tokenizer, "cpu")


def test_a_cut_tokenizer_keeps_frequent_words_whole(base, tokenizer):
    full = Tokenizer.from_file(str(base / "tokenizer.json"))
    text = "the blue kettle"
    assert tokenizer.encode(text).tokens == full.encode(text).tokens


@pytest.mark.parametrize("text", ["A zither, Mr Orbonne?", "schön: 12", "naïve\n"])
def test_a_cut_tokenizer_still_writes_everything(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_cut_embeddings_keep_what_is_alike(base, tokenizer):
    full = json.loads((base / "tokenizer.json").read_text())["model"]["vocab"]
    own = {token: number for token, number in tokenizer.get_vocab().items() if token in full}
    with small.safe_open(base / "model.safetensors", "pt") as file:
        before = file.get_tensor("model.embed_tokens.weight")[[full[token] for token in own]]
    after = small.cut_embeddings(base, tokenizer, 64)[[*own.values()]]
    centred = [x - x.mean(0) for x in (before, after)]
    alike = [torch.cosine_similarity(x[:1], x[1:]) for x in centred]
    assert torch.allclose(*alike, atol=1e-3)  # only scaled and turned


def test_training_lowers_the_loss_and_reports_progress(monkeypatch, capsys):
    monkeypatch.setattr(torch, "compile", lambda f, **_: f)
    monkeypatch.setattr(small, "PRINT_EVERY", 10)
    model = small.new_model(40, 64, 1, seed=0)
    ids, parts = torch.arange(5, 37).view(2, 16), []

    def loss_of(ids):
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        return loss, {"loss": loss.detach()}

    def batch_of(done):
        parts.append(done)
        return (ids,)

    made = small.train(
        model, (), batch_of, loss_of, tokens=32 * 60, minutes=5, lr=1e-2, check=lambda: "checked"
    )
    assert made["steps"] == 60 and made["loss"] < 2.0  # it begins at ln 40 = 3.7
    assert parts == pytest.approx([k / 60 for k in range(60)])
    assert "checked" in capsys.readouterr().out


def test_a_policy_learns_the_tokens_of_replies_alone(tokenizer):
    line = texts.Line("I put the blue kettle on the stove.", replies=[("ask", "What was the kettle like?")])
    talk = dialogues.Talk(texts.Person("x", [line], []), random.Random(0), [], 1.0)
    ids, weights = make_policy.Encoder(tokenizer).encode(talk, 1)
    learned = tokenizer.decode(ids[weights >= 1].tolist(), skip_special_tokens=False)
    assert learned == "What was the kettle like?<|end|>"
    assert " kettle" in tokenizer.decode(ids[weights == make_policy.ECHO_WEIGHT].tolist())


@pytest.mark.parametrize(
    ("all_until", "done", "first", "width"),
    [
        (make_policy.ALL_UNTIL, 0.0, 0, make_policy.SHORT_ROW),
        (make_policy.ALL_UNTIL, 0.95, 9000, make_policy.LONG_ROW),
        (0, 0.0, 9000, make_policy.SHORT_ROW),
    ],
)
def test_rows_keep_ids_and_weights_together(all_until, done, first, width):
    numbers = [np.arange(start, start + 5000) for start in (0, 9000)]
    texts = [(ids, (ids / 8).astype(np.float32)) for ids in numbers]
    ids, weights = make_policy.windows(*texts, all_until, 2048, 0)(done)
    assert ids.shape == weights.shape == (2048 // width, width)
    assert first <= ids.min() and ids.max() < first + 5000
    assert torch.equal(ids / 8, weights)


@pytest.mark.parametrize(
    ("flags", "dtype", "attention"),
    [("avx512_bf16", "float32", "sdpa"), ("amx_bf16 amx_tile", "bfloat16", "eager")],
)
def test_cpus_without_matrix_units_compute_in_float32(tmp_path, monkeypatch, flags, dtype, attention):
    monkeypatch.setattr(small, "CPU_INFO", tmp_path / "cpuinfo")
    small.CPU_INFO.write_text(f"flags : fpu {flags} avx2\n")
    weights = torch.ones(4, 4)
    with small.mixed_precision("cpu"):
        assert (weights @ weights).dtype == getattr(torch, dtype)
    assert small.attention("cpu") == attention and small.attention("cuda") == "sdpa"
