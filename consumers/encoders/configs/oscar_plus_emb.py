"""OSCAR+ Emb (xGQA, Pfeiffer et al., Findings of ACL 2022): fine-tuned with its words as they are.

The words of another language can then take their place (`oscar.in_language`).
"""

from dataclasses import replace

from .oscar_plus import CONFIG as OSCAR_PLUS

CONFIG = replace(OSCAR_PLUS, name="oscar-plus-emb", frozen=("text_embed.",), any_vocabulary=True)
