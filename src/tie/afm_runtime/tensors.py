"""Tensors in and out of Triton: by DLPack only, INT32 and UINT8 only.

Under NumPy 2 this Triton's own conversions (`as_numpy`, `Tensor(name, array)`) silently corrupt values. Inputs are
bounded before they are copied out of the shared region; what Triton keeps of them is gone with its process.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

_DTYPES: Final = {"INT32": np.dtype(np.int32), "UINT8": np.dtype(np.uint8)}

_set_destructor = ctypes.pythonapi.PyCapsule_SetDestructor
_set_destructor.argtypes = [ctypes.py_object, ctypes.c_void_p]
_set_destructor.restype = ctypes.c_int


class WrongTensor(ValueError):
    """An input is not what the contract says. The message names the tensor and a limit, never a value of it."""


class TooLong(WrongTensor):
    """An input has more items than its limit."""


def incoming(request: Any, name: str, kind: str, most: int) -> NDArray[Any] | None:
    """A private copy of an input of one dimension; None when the client left it out. Raises WrongTensor."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return None
    shape = tensor.shape()
    if len(shape) != 1:
        raise WrongTensor(f"input {name} has {len(shape)} dimensions, not 1")
    if not 0 <= shape[0] <= most:
        raise TooLong(f"input {name} has more than {most} items")
    if not tensor.is_cpu():
        raise WrongTensor(f"input {name} is not in host memory")
    array = np.from_dlpack(tensor)
    if array.dtype != _DTYPES[kind]:
        raise WrongTensor(f"input {name} is not {kind}")
    return array.copy()


def outgoing(name: str, array: NDArray[Any]) -> Any:
    """`array` must be writable and must not be used afterwards."""
    capsule = array.__dlpack__()
    # Triton renames the capsule, which NumPy's destructor would reject, and frees the array itself.
    _set_destructor(capsule, None)
    return pb_utils.Tensor.from_dlpack(name, capsule)
