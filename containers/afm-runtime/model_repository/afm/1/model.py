"""Triton loads this file; the runtime itself is tie.afm_runtime, in the Python that Triton's stub runs."""

from tie.afm_runtime.model import TritonPythonModel

__all__ = ["TritonPythonModel"]
