"""Regions, records and stores: the part of roivault that a trainer needs. Imports numpy, lmdb, xxhash and ml_dtypes only."""

from .errors import (
    CorruptRecord,
    DataError,
    DiskError,
    InputNotFound,
    InvalidRegions,
    MissingKeys,
    RoivaultError,
    StoreDamaged,
    StoreLocked,
    StoreMismatch,
    StoreNotFound,
    UsageError,
    WeightsError,
)
from .regions import FAILURE_KINDS, Failure, Regions

__all__ = [
    "FAILURE_KINDS",
    "CorruptRecord",
    "DataError",
    "DiskError",
    "Failure",
    "InputNotFound",
    "InvalidRegions",
    "MissingKeys",
    "Regions",
    "RoivaultError",
    "StoreDamaged",
    "StoreLocked",
    "StoreMismatch",
    "StoreNotFound",
    "UsageError",
    "WeightsError",
]
