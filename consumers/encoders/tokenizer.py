"""Texts to token ids, with the tokenizer of an encoder's text model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from cache import InputNotFound, UsageError

from .config import EncoderConfig
from .registry import encoder_config

MAX_TOKENS = 80  # of all tasks but GQA, where it is 40


class TextBatch(NamedTuple):
    """input_ids int64 [B, L] and input_mask int64 [B, L]; L is the longest text of the batch."""

    input_ids: Tensor
    input_mask: Tensor


class Tokenizer:
    """`tokenizer(texts, max_tokens=80)` -> TextBatch, the published way: the special tokens around the text, and of a
    text that is too long the first max_tokens - 2 pieces between them; padded to the longest text of the batch."""

    def __init__(self, tokenizer, config: EncoderConfig):
        self.tokenizer, self.config = tokenizer, config

    def __call__(self, texts: Sequence[str], max_tokens: int = MAX_TOKENS) -> TextBatch:
        return self.pad(self.rows(texts, max_tokens))

    def rows(self, texts: Sequence[str], max_tokens: int = MAX_TOKENS) -> list[list[int]]:
        """The token ids of each text, cut but not padded. Raises: UsageError."""
        if isinstance(texts, str) or not len(texts):
            raise UsageError(f"texts is {texts!r}; give a sequence of at least one text")
        self.check(max_tokens)
        return self.tokenizer(list(texts), truncation=True, max_length=max_tokens, padding=False)["input_ids"]

    def check(self, max_tokens: int) -> None:
        """Raises: UsageError: the encoder takes no texts of that length."""
        if not 3 <= max_tokens <= self.config.max_text:
            raise UsageError(f"max_tokens is {max_tokens}; {self.config.name} takes 3 to {self.config.max_text}")

    def pieces(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, neither cut nor between special tokens."""
        return self.tokenizer(list(texts), add_special_tokens=False, truncation=False, padding=False)["input_ids"]

    @property
    def ends(self) -> tuple[int, int]:
        """The special tokens at the beginning of a text and behind it."""
        return self.tokenizer.cls_token_id, self.tokenizer.sep_token_id

    def pad(self, rows: Sequence[Sequence[int]]) -> TextBatch:
        """Token ids of several texts as one batch."""
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.full((len(rows), int(lengths.max())), self.config.pad_id)
        for row, tokens in zip(ids, rows, strict=True):
            row[: len(tokens)] = torch.tensor(tokens)
        return TextBatch(ids, (torch.arange(ids.shape[1]) < lengths[:, None]).long())


def load_tokenizer(encoder: str | EncoderConfig, source: str | Path | None = None) -> Tokenizer:
    """The tokenizer of an encoder, from a hub id or a local directory (default: the encoder's own hub id).

    Raises InputNotFound when there is none, and UsageError for one that does not fit the encoder's vocabulary.
    """
    from transformers import AutoTokenizer

    config = encoder_config(encoder)
    source = str(source or config.tokenizer)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputNotFound(
            f"no tokenizer for {config.name} at {source!r} ({reason}); give a hub id that can be reached, or a "
            f"directory with the tokenizer files of {config.tokenizer}"
        ) from error
    if len(tokenizer) > config.vocab_size:
        raise UsageError(
            f"the tokenizer at {source!r} has {len(tokenizer)} tokens, {config.name}'s word table "
            f"{config.vocab_size}; {config.name} needs that of {config.tokenizer}"
        )
    if tokenizer.pad_token_id != config.pad_id:
        raise UsageError(
            f"the tokenizer at {source!r} pads with {tokenizer.pad_token_id}, {config.name} with {config.pad_id}; "
            f"{config.name} needs the tokenizer of {config.tokenizer}"
        )
    if config.separator_id not in (None, tokenizer.sep_token_id):
        raise UsageError(
            f"the tokenizer at {source!r} ends texts with {tokenizer.sep_token_id}, {config.name} with "
            f"{config.separator_id}; {config.name} needs the tokenizer of {config.tokenizer}"
        )
    return Tokenizer(tokenizer, config)
