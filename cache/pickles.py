"""Foreign pickles, read without running them: plain values, numpy arrays and torch's tensors are all they may hold.

No global of a pickle is ever resolved. Those that numpy's arrays, dtypes and scalars, and torch's tensors, are made of
are stood in for by the few lines below, which build arrays from their bytes; any other is refused by name, and so is
writing attributes on what stands in. Nothing takes more memory than the bytes of the pickle account for, nor will it
where lists that hold one another are written out. Pickles of Python 2 and of numpy before and after 2.0 are read alike.
"""

from __future__ import annotations

import io
import pickle
import re
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from .errors import DataError

_PLAIN_DTYPE = re.compile(r"[<>|=]?([fiub][1248]|S\d+|U\d+|\?|b1)")
_MOST_VALUES = 1 << 26  # in a list with all lists in it; arrays are not made of values
_MOST_HEAD = 1024  # bytes of what stands before the numbers of a tensor


class UnsafePickle(DataError):
    """A pickle that asks for something else than plain values and arrays; `name` is what, `where` it lies."""

    def __init__(self, name: str, where: str = ""):
        super().__init__(
            f"{where and f'{where}: '}the pickle asks for {name!r}, which region features do not need, and was not "
            "run: it may be malicious. If you trust where it comes from, convert it with the program that made it"
        )
        self.name, self.where = name, where

    def __reduce__(self):
        return type(self), (self.name, self.where)


def load_pickle(source: bytes | memoryview | BinaryIO, where: str = "") -> Any:
    """The value of a pickle: dicts, lists, tuples, text, numbers, bytes and numpy arrays, which tensors become too.

    Args:
        where: it lies, for the error.

    Raises:
        UnsafePickle: it asks for anything else.
        ValueError: it is not a pickle, is cut short, or holds an array that does not fit its bytes.
    """
    file = source if hasattr(source, "read") else io.BytesIO(source)
    try:
        return _Plain()(_Unpickler(file, encoding="latin1").load())
    except UnsafePickle as error:
        raise UnsafePickle(error.name, where) from None
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise ValueError(f"not a usable pickle: {error or type(error).__name__}") from None


class _DType:
    """Stands for numpy.dtype: its text and, once its state is set, its byte order."""

    def __init__(self, text: str, align: bool = False, copy: bool = False):
        self.text = text.decode("latin1") if isinstance(text, bytes) else text
        self.is_object = self.text in ("O", "O8", "O4", "|O")
        if not self.is_object and not _PLAIN_DTYPE.fullmatch(self.text):
            raise ValueError(f"arrays of dtype {self.text!r} are not supported")

    def __setstate__(self, state: tuple) -> None:
        order = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        if order in ("<", ">") and self.text[0] not in "<>|=":
            self.text = order + self.text

    def numpy(self) -> np.dtype:
        return np.dtype(self.text)


class _Array:
    """Stands for numpy.ndarray: what it becomes is in `value` once its state is set."""

    def __init__(self, *_: Any):
        self.value: Any = None

    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, fortran, raw = state
        if dtype.is_object:
            if not isinstance(raw, list) or len(raw) != int(np.prod(shape, dtype=object)):
                raise ValueError("an array of objects does not fit its shape")
            self.value = raw if shape else raw[0]
        else:
            self.value = _frombuffer(raw, dtype, shape, "F" if fortran else "C")


def _frombuffer(raw: Any, dtype: _DType, shape: tuple, order: str, *_: Any) -> np.ndarray:
    data = raw.encode("latin1") if isinstance(raw, str) else raw
    array = np.frombuffer(data, dtype.numpy())
    return array.reshape(shape, order="F" if order == "F" else "C")


def _scalar(dtype: _DType, raw: Any = b"") -> Any:
    return _frombuffer(raw, dtype, (), "C")[()]


def _encode(text: str, encoding: str) -> bytes:
    """How pickles of protocol 2 write bytes."""
    if encoding not in ("latin1", "latin-1"):
        raise UnsafePickle(f"_codecs.encode to {encoding}")
    return text.encode("latin1")


def _bytes(value: str | bytes = b"", encoding: str = "latin1") -> bytes:
    """How they write no bytes, and bytearrays; never a number, which would ask for that much memory."""
    return _encode(value, encoding) if isinstance(value, str) else b"".join([value])


def _storage(raw: bytes) -> np.ndarray:
    """The numbers that torch saved of a storage: pickles of which the fourth tells the dtype and the fifth the names of
    those that follow; how many numbers; the numbers."""
    file = io.BytesIO(raw[:_MOST_HEAD])
    *_, dtype, _ = (_StorageUnpickler(file, encoding="latin1").load() for _ in range(5))
    (count,) = struct.unpack("<q", file.read(8))
    return np.frombuffer(raw, dtype, count, file.tell())


def _tensor(storage: np.ndarray, offset: int, shape: list[int], strides: list[int], *_: Any) -> np.ndarray:
    """A tensor whose numbers lie in the storage one after the other."""
    count = int(np.prod(shape, dtype=object))
    array = storage[offset : offset + count].reshape(shape)
    if [step * array.itemsize for n, step in zip(shape, strides, strict=True) if n > 1] != [
        step for n, step in zip(shape, array.strides, strict=True) if n > 1
    ]:
        raise ValueError("a tensor whose numbers do not lie one after the other")
    return array


_STAND_INS = {
    **{("torch._utils", "_rebuild_tensor_v2"): _tensor, ("torch.storage", "_load_from_bytes"): _storage},
    **{(module, name): _bytes for module in ("builtins", "__builtin__") for name in ("bytes", "bytearray")},
    **{("numpy", "ndarray"): _Array, ("numpy", "dtype"): _DType, ("_codecs", "encode"): _encode},
    ("collections", "OrderedDict"): OrderedDict,
    **{
        (f"numpy.{core}.{module}", name): stand_in
        for core in ("core", "_core")
        for module, name, stand_in in (
            ("multiarray", "_reconstruct", _Array),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _frombuffer),
        )
    },
}


class _Unpickler(pickle._Unpickler):  # in Python: that in C reserves what memory a few bytes ask for
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise UnsafePickle(f"{module}.{name}") from None

    def persistent_load(self, pid: Any) -> Any:
        raise UnsafePickle(f"persistent id {pid!r}")

    def get_extension(self, code: int) -> None:
        raise UnsafePickle(f"extension {code}")

    def load_build(self) -> None:
        """Set the state of a stand-in; on anything else this would write attributes, which outlive the pickle."""
        if not isinstance(self.stack[-2], (_Array, _DType)):
            raise UnsafePickle(f"{type(self.stack[-2]).__name__}.__setstate__")
        super().load_build()

    def load_bytearray8(self) -> None:
        """Bytes, as many as there are; the original fills with zeros first whatever size is claimed."""
        self.append(self.read(*struct.unpack("<Q", self.read(8))))

    dispatch = pickle._Unpickler.dispatch | {pickle.BUILD[0]: load_build, pickle.BYTEARRAY8[0]: load_bytearray8}


class _StorageUnpickler(_Unpickler):
    """Of a storage: it names its class, wherever it was saved from, and nothing else; above all no further storage."""

    _dtypes = {"Half": "<f2", "Float": "<f4", "Double": "<f8", "Int": "<i4", "Long": "<i8"}

    def find_class(self, module: str, name: str) -> str:
        kind = name.removesuffix("Storage")
        if module not in ("torch", "torch.cuda") or kind not in self._dtypes:
            raise UnsafePickle(f"{module}.{name}")
        return self._dtypes[kind]

    def persistent_load(self, pid: Any) -> str:
        return pid[1]


class _Tuple(list):
    """Stands for a tuple while it is read: hashing tuples that hold one another takes for ever, which lists refuse."""


def _as_stand_in(load: Callable[[_Unpickler], None]) -> Callable[[_Unpickler], None]:
    def load_tuple(unpickler: _Unpickler) -> None:
        load(unpickler)
        unpickler.stack[-1] = _Tuple(unpickler.stack[-1])

    return load_tuple


for _code in (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3):
    _Unpickler.dispatch[_code[0]] = _as_stand_in(_Unpickler.dispatch[_code[0]])


class _Plain:
    """Puts arrays and tuples in place of what stands for them; what is shared stays shared."""

    def __init__(self) -> None:
        self._done: dict[int, Any] = {}  # by the id of a container that was read
        self._written: dict[int, int] = {}  # by the id of a list or tuple, how many values it is when written out

    def __call__(self, value: Any) -> Any:
        if isinstance(value, _Array):
            return self(value.value)
        if not isinstance(value, (dict, list)):
            return value
        if id(value) not in self._done:
            self._done[id(value)] = self._dict(value) if isinstance(value, dict) else self._list(value)
        return self._done[id(value)]

    def _dict(self, value: dict) -> dict:
        return {key: self(item) for key, item in value.items()}

    def _list(self, value: list) -> list | tuple:
        items = list(map(self, value))
        result = tuple(items) if isinstance(value, _Tuple) else items
        count = len(items) + sum(self._written.get(id(item), 0) for item in items)
        if count > _MOST_VALUES:
            raise ValueError(f"lists in it hold one another so often that they are {count:,} values")
        self._written[id(result)] = count
        return result
