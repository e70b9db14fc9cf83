"""Regions, records and stores: what a trainer needs. Imports numpy, lmdb, xxhash and ml_dtypes only."""

from .errors import (
    CorruptRecord,
    DataError,
    DiskError,
    InfrastructureLost,
    InputNotFound,
    InvalidRegions,
    MissingKeys,
    RoivaultError,
    StoreDamaged,
    StoreLocked,
    StoreMismatch,
    StoreNotFound,
    StoreUnreachable,
    UsageError,
    WeightsError,
)
from .opening import read_fingerprint
from .regions import FAILURE_KINDS, Failure, Regions
from .states import WriteResult
from .store import RegionStore, open_store
from .writer import StoreWriter

__all__ = [
    "FAILURE_KINDS",
    "CorruptRecord",
    "DataError",
    "DiskError",
    "Failure",
    "InfrastructureLost",
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
    "StoreUnreachable",
    "StoreWriter",
    "UsageError",
    "WeightsError",
    "WriteResult",
    "open_store",
    "read_fingerprint",
]
