"""Metadata of the roivault distribution; tool settings are in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"$', (HERE / "roivault.py").read_text("utf-8"), re.MULTILINE)[1]

PACKAGES = ("cache", "extractor", "ray_jobs", "consumers")

BASE = ["numpy>=1.24", "lmdb>=1.4", "xxhash>=3.0", "ml_dtypes>=0.3.1", "typer>=0.15", "rich>=13.8"]
EXTRAS = {
    "extract": [
        "torch>=2.9",
        "torchvision>=0.24",
        "opencv-python-headless>=4.8",
        "pillow>=10.1",
        "safetensors>=0.4",
        "fsspec[http]>=2023.6",
    ],
    "ray": ["ray[default,train]>=2.52", "prometheus_client>=0.19"],
    "consumers": [
        "torch>=2.9",
        "transformers>=4.40",
        "tokenizers>=0.19",
        "sentencepiece>=0.2",
        "protobuf>=4.25",
        "safetensors>=0.4",
        "matplotlib>=3.8",
        "pillow>=10.1",
        "scipy>=1.10",
        "tensorboard>=2.14",
    ],
    "server": ["pyarrow>=14", "prometheus_client>=0.19"],
}
FORMATS = ["h5py>=3.10"]  # foreign caches in HDF5
EXTRAS["all"] = sorted({requirement for extra in EXTRAS.values() for requirement in extra} | set(FORMATS))
EXTRAS["dev"] = ["pytest>=8", "pytest-timeout>=2.3", "pytest-xdist>=3.5", "hypothesis>=6.100", "ruff>=0.6", *FORMATS]
EXTRAS["dev"] += ["setuptools>=70.1", "prometheus_client>=0.19", "pyyaml>=6", "pyarrow>=14", "cryptography>=42"]

setup(
    name="roivault",
    version=VERSION,
    description="Region features of images: extracted once, kept in a cache that trainers read at memory speed.",
    long_description=(HERE / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE", "NOTICE"],
    python_requires=">=3.10",
    packages=find_packages(include=[pattern for name in PACKAGES for pattern in (name, f"{name}.*")]),
    py_modules=["roivault"],
    package_data={"extractor": ["data/*"], "consumers": ["published/*.csv"]},
    install_requires=BASE,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["roivault=roivault:main"]},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Recognition",
    ],
)
