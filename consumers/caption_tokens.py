"""Words of captions and answers, as the soft metrics compare them.

COCO's evaluation cuts texts with Stanford's PTBTokenizer, which is Java; its rules that matter to captions are here:
lower case, contractions in two, hyphenated words and numbers whole, punctuation dropped. Languages that are written
without spaces are cut into characters instead: scores of characters are higher than those of words, so whoever prints
them says which they are (`unit_of`).
"""

from __future__ import annotations

import re
import unicodedata

UNSPACED = ("ja", "th", "zh")
_MARKS = r"!-/:-@\[-`{-~¡-©«-±´-¸»¿׀׃׆־।-॥๚๛‐-‧‰-⁞、-〃〈-〟！-／：-＠［-｀｛-･"
_INSIDE = r"'’‐-"  # of words: isn't, black-and-white
_TOKEN = re.compile(
    rf"\d+(?:[.,:/]\d+)+|(?:\b[ldj]['’])(?=[^\s{_MARKS}])|[^\s{_MARKS}]+(?:[{_INSIDE}]+[^\s{_MARKS}]+)*|\.{{2,}}|[^\s]"
)
_CONTRACTION = re.compile(r"(?<=[^\W\d_])(n['’]t|['’](?:s|m|d|re|ve|ll))$")
_DROPPED = frozenset(".?!,:;-'\"`()[]{}‘’‚“”„«»‹›…–—‐‑।॥。、，．？！：；（）［］｛｝「」『』【】《》〈〉·・¿¡׃־")


def unit_of(language: str) -> str:
    """What texts of a language are cut into: "characters" or "words"."""
    return "characters" if language in UNSPACED else "words"


def tokens(text: str, language: str = "en") -> list[str]:
    """The words of a text, or its characters, in lower case and without punctuation.

    Args:
        language: ISO 639-1.
    """
    return characters(text) if unit_of(language) == "characters" else words(text)


def words(text: str) -> list[str]:
    """Words after the rules of PTBTokenizer and COCO's list of punctuation to drop."""
    found = []
    for token in _TOKEN.findall(text.lower()):
        if token in _DROPPED or token.startswith(".."):
            continue
        cut = _CONTRACTION.search(token)
        found += [token[: cut.start()], cut[0]] if cut else [token]
    return found


def characters(text: str) -> list[str]:
    """Characters with the marks that belong to them; spaces and punctuation are dropped, runs of Latin letters and of
    digits are kept whole."""
    found: list[str] = []
    glue = False
    for char in text.lower():
        if char.isspace() or char in _DROPPED:
            glue = False
            continue
        plain = char.isascii() and char.isalnum()
        if found and (unicodedata.category(char)[0] == "M" or plain and glue):
            found[-1] += char
        else:
            found.append(char)
        glue = plain
    return found
