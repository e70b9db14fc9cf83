"""Metrics of texts that were generated: CIDEr, ROUGE-L and exact match, one score for each text.

Papers print means times 100. CIDEr weighs words by how many of the evaluated items have them, so a score is of its set:
subsets are means of the whole set's scores, and one item alone has 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from cache import DataError

Tokens = Sequence[str]
LONGEST = 4  # words of an n-gram
SIGMA = 6.0  # of the penalty for other lengths
BETA = 1.2  # how much more recall counts than precision


def cider(hypotheses: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> np.ndarray:
    """CIDEr-D (Vedantam et al., CVPR 2015) with the weights and the penalty of COCO's evaluation (pycocoevalcap's
    `Cider`): counts are clipped, and lengths are compared as numbers of pairs of words.

    Args:
        hypotheses: one text for each item, in words.
        references: what the item's text should be like, one at least.

    Returns: f64 [items], from 0 to 10. Texts of one word have 2.5 at most, for they have no longer n-grams.
    Raises: DataError: another number of items, or one without references.
    """
    _check(hypotheses, references)
    counted = [[_ngrams(text) for text in texts] for texts in references]
    frequency: Counter[Tokens] = Counter()
    for texts in counted:
        frequency.update(set().union(*texts))
    known = math.log(len(references)) if references else 0.0
    weights = {ngram: known - math.log(count) for ngram, count in frequency.items()}
    scores = np.zeros(len(references))
    for item, (text, texts) in enumerate(zip(hypotheses, counted, strict=True)):
        own = _Weighted(_ngrams(text), weights, known)
        scores[item] = 10 * np.mean([own.similarity(_Weighted(one, weights, known)) for one in texts])
    return scores


def _ngrams(text: Tokens) -> Counter[Tokens]:
    return Counter(tuple(text[i : i + n]) for n in range(1, LONGEST + 1) for i in range(len(text) - n + 1))


class _Weighted:
    """The n-grams of a text by their length, times their weights; `unknown` is that of n-grams of no reference."""

    def __init__(self, ngrams: Counter[Tokens], weights: Mapping[Tokens, float], unknown: float):
        self.vectors: list[dict[Tokens, float]] = [{} for _ in range(LONGEST)]
        for ngram, count in ngrams.items():
            self.vectors[len(ngram) - 1][ngram] = count * weights.get(ngram, unknown)
        self.norms = [math.sqrt(sum(v * v for v in vector.values())) for vector in self.vectors]
        self.pairs = sum(count for ngram, count in ngrams.items() if len(ngram) == 2)

    def similarity(self, reference: _Weighted) -> float:
        total = 0.0
        for n in range(LONGEST):
            own, its, norm = self.vectors[n], reference.vectors[n], self.norms[n] * reference.norms[n]
            if norm:
                total += sum(min(value, its[ngram]) * its[ngram] for ngram, value in own.items() if ngram in its) / norm
        return total / LONGEST * math.exp(-((self.pairs - reference.pairs) ** 2) / (2 * SIGMA**2))


def rouge_l(hypotheses: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> np.ndarray:
    """ROUGE-L (Lin, 2004) as in COCO's evaluation: of the longest common subsequence, the best precision and the best
    recall over the references.

    Returns: f64 [items], from 0 to 1.
    Raises: DataError: another number of items, or one without references.
    """
    _check(hypotheses, references)
    return np.array([_rouge(text, texts) for text, texts in zip(hypotheses, references, strict=True)], np.float64)


def _rouge(text: Tokens, references: Sequence[Tokens]) -> float:
    common = [_common(text, one) for one in references]
    precision = max(common) / max(1, len(text))
    recall = max(count / max(1, len(one)) for count, one in zip(common, references, strict=True))
    if not precision or not recall:
        return 0.0
    return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)


def _common(one: Tokens, other: Tokens) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(other) + 1)
    for word in one:
        before = 0
        for place, its in enumerate(other, 1):
            before, row[place] = row[place], before + 1 if word == its else max(row[place], row[place - 1])
    return row[-1]


def exact_match(
    predictions: Sequence[str], answers: Sequence[Collection[str]], process: Callable[[str], str] = str.strip
) -> np.ndarray:
    """Whether each prediction is one of its answers, after both went through `process`: bool [items]."""
    pairs = zip(predictions, answers, strict=True)
    return np.array([process(said) in {process(one) for one in right} for said, right in pairs], bool)


def _check(hypotheses: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> None:
    if len(hypotheses) != len(references):
        raise DataError(f"there are {len(hypotheses)} texts for {len(references)} items")
    if lacking := [item for item, texts in enumerate(references) if not texts]:
        raise DataError(f"{len(lacking)} items have nothing to compare with, such as the one at {lacking[0]}")
