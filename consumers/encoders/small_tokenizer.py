"""A WordPiece tokenizer of few words, made from the texts it is to read: for encoders that start from nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def make_tokenizer(texts: Iterable[str], folder: str | Path, size: int) -> Path:
    """Save a tokenizer of the most frequent words in the way that `load_tokenizer(encoder, folder)` reads.

    Words beyond `size` entries are read letter by letter.
    """
    from transformers import BertTokenizer

    words = Counter(word for text in texts for word in re.findall(r"\w+|[^\w\s]", text.lower()))
    pieces = [*SPECIAL, *CHARACTERS, *(f"##{letter}" for letter in CHARACTERS)]
    frequent = sorted(words.keys() - {*pieces}, key=lambda word: (-words[word], word))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join([*pieces, *frequent][:size]) + "\n", "utf-8")
    BertTokenizer(str(folder / "vocab.txt"), do_lower_case=True).save_pretrained(folder)
    return folder
