"""A tiny model of random weights that can play every role: its context holds a judge's prompt."""

from __future__ import annotations

import socket
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mapo.local_model.role_file import RoleFile, rubric_fingerprint, write_role_file
from mapo.measure.calibration import Calibration
from mapo.measure.rubric import Rubric
from support.tiny import CHATML

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CONTEXT = 8192
LIMITS = {"user": 12, "director": 64, "judge": 360}
"""Tokens of the answers, at least those that a form needs: random weights rarely end a text themselves."""


def local_cast_folder(folder: Path, seed: int = 0) -> Path:
    """Write a model whose tokenizer was trained on the prompts of the roles, so that they are short."""
    tokenizer = _tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def trained_judge(folder: Path, **changes: Any) -> Path:
    """Write the role file of a judge of the empathy rubric into a model's folder."""
    rubric = Rubric.load("empathy")
    file = RoleFile(
        "judge",
        "empathy",
        rubric_fingerprint(rubric),
        calibration=Calibration((2.0,) * 6, ((0.5, 1.5),) * 6),
    )
    write_role_file(folder, replace(file, **changes))
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    package = Path(str(files("mapo")))
    texts = [path.read_text(encoding="utf-8") for path in sorted(package.glob("sandbox/prompts/*"))]
    texts += [path.read_text(encoding="utf-8") for path in sorted(package.glob("domains/empathy/*.toml"))]
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=2000,
            special_tokens=SPECIAL,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL,
        chat_template=CHATML,
    )


def block_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse every connection that is not to this machine."""
    connect = socket.socket.connect

    def refuse(self: socket.socket, address: object) -> None:
        if self.family != socket.AF_UNIX and not str(address).startswith(("('127.", "('::1'")):
            raise AssertionError(f"connection to {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", refuse)
