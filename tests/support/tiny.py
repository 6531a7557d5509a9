"""Tiny models and tokenizers, made on the spot: one for each manner of chat template in use."""

from __future__ import annotations

from functools import cache

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = [
    "I am tired and nobody listens to me at work, it has been like this for weeks now.",
    "That sounds hard. What happened today that made it feel so heavy for you?",
    "Hello there. Good day to you. It rains. So it does, again. What now? Wait a little.",
]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|head|>{{ m['role'] }}<|headed|>\n\n"
    "{{ m['content'] | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|headed|>\n\n{% endif %}"
)
# Thinking is stripped from earlier turns; with thinking off, the prompt holds an empty thought.
QWEN3 = (
    "{% for m in messages %}{% set said = m['content'] %}"
    "{% if m['role'] == 'assistant' and '</think>' in said %}"
    "{% set said = said.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ said }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}"
    "{{ raise_exception('no system role here') }}{% endif %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m['role'] == 'assistant' else 'user' }}\n"
    "{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

FAMILIES = {
    "chatml": (CHATML, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "<|im_end|>", None),
    "llama3": (LLAMA3, ["<|begin|>", "<|end|>", "<|head|>", "<|headed|>", "<|eot|>"], "<|end|>", "<|begin|>"),
    "qwen3": (QWEN3, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "<|im_end|>", None),
    "gemma": (GEMMA, ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"], "<eos>", "<bos>"),
}


@cache
def tokenizer(family: str = "chatml"):
    """A byte-level tokenizer of about 400 ids; pad equals eos, as in some models people really use."""
    template, special, eos, bos = FAMILIES[family]
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(TEXT, trainer)
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=eos, pad_token=eos, bos_token=bos, additional_special_tokens=special
    )
    if family == "qwen3":
        made.add_tokens(["<think>", "</think>"])  # added, but not special, as in that family
    made.chat_template = template
    return made


_SHAPE = {
    "vocab_size": 448,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 2048,
}
_MODELS = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
    "gemma2": (
        "Gemma2Config",
        {"sliding_window": 16, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 20.0},
    ),
    "gemma3": ("Gemma3TextConfig", {"sliding_window": 16, "query_pre_attn_scalar": 8}),
    "mistral": ("MistralConfig", {"sliding_window": 24}),
}


def model(kind: str = "llama", seed: int = 0, **changes):
    """A random model; its weights are larger than usual, so that its distributions have some shape."""
    name, more = _MODELS[kind]
    config = getattr(transformers, name)(
        **{**_SHAPE, **more, **changes, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    )
    torch.manual_seed(seed)
    made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.25)
    return made.eval()
