"""OSCAR (Li et al., ECCV 2020): BERT over words, object tags and regions."""

from dataclasses import replace

from .oscar_plus import CONFIG as OSCAR_PLUS

CONFIG = replace(OSCAR_PLUS, name="oscar", image_norm=False)
