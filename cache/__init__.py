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
from .store import RegionStore, open_store
from .writer import StoreWriter, WriteResult, read_fingerprint

__all__ = [
    "FAILURE_KINDS",
    "CorruptRecord",
    "DataError",
    "DiskError",
    "Failure",
    "InputNotFound",
    "InvalidRegions",
    "MissingKeys",
    "RegionStore",
    "Regions",
    "RoivaultError",
    "StoreDamaged",
    "StoreLocked",
    "StoreMismatch",
    "StoreNotFound",
    "StoreWriter",
    "UsageError",
    "WeightsError",
    "WriteResult",
    "open_store",
    "read_fingerprint",
]
