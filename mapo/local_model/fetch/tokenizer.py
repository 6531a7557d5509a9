"""Tokenizers built from the vocabulary, merges and chat template of a GGUF file.

transformers can read GGUF tokenizers too, but it does not split numbers into digits.
"""

from __future__ import annotations

from typing import Any

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
"""How Qwen2 splits text into words: a digit is a word."""


def make_tokenizer(fields: dict[str, Any]) -> Any:
    """Return the `tokenizers.Tokenizer` of a model."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {
        token: number
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind != _UNUSED
    }
    tokenizer: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    if fields["tokenizer.ggml.pre"] == "qwen2":
        from tokenizers import Regex

        tokenizer.normalizer = normalizers.NFC()
        words: Any = pre_tokenizers.Split(Regex(_QWEN2_WORDS), behavior="isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    else:
        words = pre_tokenizers.Digits(individual_digits=True)
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        added = [token for token, other in zip(tokens, kinds, strict=True) if other == kind]
        tokenizer.add_tokens([AddedToken(token, special=special, normalized=False) for token in added])
    return tokenizer


def tokenizer_config(fields: dict[str, Any], context: int) -> dict[str, Any]:
    """Return tokenizer_config.json."""
    tokens = fields["tokenizer.ggml.tokens"]
    names = {"eos": "eos", "pad": "padding"}
    if fields.get("tokenizer.ggml.add_bos_token") is not False or "tokenizer.ggml.unknown_token_id" in fields:
        names |= {"bos": "bos", "unk": "unknown"}
    special = {
        f"{name}_token": tokens[fields[f"tokenizer.ggml.{key}_token_id"]] for name, key in names.items()
    }
    return {
        # the generic class uses tokenizer.json unchanged; GPT2Tokenizer would drop the digit split
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "chat_template": fields["tokenizer.chat_template"],
    }
