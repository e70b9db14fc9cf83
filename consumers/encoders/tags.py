"""The names of a picture's objects behind a text, as one sequence of token ids (OSCAR, Li et al., ECCV 2020).

It is the text between the first and the last special token, then, where there are any, the tags and another last token.
Where that would be too long,

* "balanced" takes tokens off the end of the longer of the two, of the tags where both are of one length;
* "text first" cuts the text alone as if there were no tags, and the tags to what it leaves. The published code left all
  tags but one where it leaves nothing, which made the sequence too long; here it has none then.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cache import UsageError

from .config import EncoderConfig

RULES = ("balanced", "text first")
PARTS = ("CL", "CR", "LR")  # C the text, L the tags and R the regions


def rule_of(config: EncoderConfig, head: str) -> str | None:
    """How the published code cut the inputs of a head; None for an encoder that reads texts alone there."""
    if head not in config.tagged:
        return None
    return "text first" if head == "retrieval" else "balanced"


def packed(
    text: Sequence[int], tags: Sequence[Sequence[int]], most: int, first: int, last: int, rule: str = "balanced"
) -> list[list[int]]:
    """One sequence for each picture that a text is about.

    Args:
        text: token ids without special tokens.
        tags: the same of each picture.
        most: length at which a sequence is cut.
        first, last: the special tokens.
        rule: one of RULES. "balanced" keeps a text that one picture's tags have shortened short for the next ones, as
            published.

    Raises: UsageError.
    """
    if rule not in RULES:
        raise UsageError(f"rule {rule!r} is not one of {', '.join(RULES)}")
    found = []
    for names in tags:
        if not names or rule == "text first":
            text = text[: most - 2]
            names = names[: max(0, most - len(text) - 3)]
        else:
            text, names = _balanced(text, names, most - 3)
        behind = [*names, last] if names else []
        found.append([first, *text, last, *behind])
    return found


def _balanced(text: Sequence[int], names: Sequence[int], room: int) -> tuple[Sequence[int], Sequence[int]]:
    over = max(0, len(text) + len(names) - room)
    longer = min(over, abs(len(text) - len(names)))  # taken off the longer, until both are of one length
    if len(text) > len(names):
        text = text[: len(text) - longer]
    else:
        names = names[: len(names) - longer]
    rest = over - longer  # then off both in turn, the tags first
    return text[: len(text) - rest // 2], names[: len(names) - (rest + 1) // 2]


def attention_between(parts: str, segments: Tensor, text_mask: Tensor, region_mask: Tensor) -> Tensor:
    """Who looks at whom, for `Oscar`'s `attention`: each of text, tags and regions at itself, and the two of `parts` at
    each other, as published for retrieval.

    Args:
        parts: one of PARTS.
        segments: i64 [B, L], 1 for tags, see `Oscar.segments`.
        text_mask, region_mask: [B, L] and [B, R].

    Returns: bool [B, L + R, L + R].
    Raises: UsageError.
    """
    if parts not in PARTS:
        raise UsageError(f"parts {parts!r} are not one of {', '.join(PARTS)}")
    words, nothing = text_mask.bool(), torch.zeros_like(region_mask, dtype=torch.bool)
    of = {
        "C": torch.cat((words & (segments == 0), nothing), 1),
        "L": torch.cat((words & (segments == 1), nothing), 1),
        "R": torch.cat((torch.zeros_like(words), region_mask.bool()), 1),
    }
    seen = [part[:, :, None] & part[:, None] for part in of.values()]
    one, other = (of[letter] for letter in parts)
    seen += [one[:, :, None] & other[:, None], other[:, :, None] & one[:, None]]
    return torch.stack(seen).any(0)
