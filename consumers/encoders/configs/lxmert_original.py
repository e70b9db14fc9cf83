"""LXMERT as first published (Tan and Bansal, EMNLP 2019): four location values, no global region, the text's pooler."""

from dataclasses import replace

from .lxmert import CONFIG as CONTROLLED

CONFIG = replace(
    CONTROLLED,
    name="lxmert-original",
    location_dim=4,
    global_region="none",
    pool_size=768,
    fusion="text",
)
