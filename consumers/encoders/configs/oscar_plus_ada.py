"""OSCAR+ Ada (xGQA, Pfeiffer et al., Findings of ACL 2022): adapters of the task, trained behind those of a language.

The adapters and words of another language can then take the place of the latter (`oscar.in_language`).
"""

from dataclasses import replace

from .oscar_plus import CONFIG as OSCAR_PLUS

LANGUAGES = tuple(f"adapters.{n}.language." for n in range(len(OSCAR_PLUS.layout) // 2))

CONFIG = replace(
    OSCAR_PLUS,
    name="oscar-plus-ada",
    adapters=(384, 48),
    frozen=("text_embed.", "image_embed.", "blocks.", *LANGUAGES),
    any_vocabulary=True,
)
