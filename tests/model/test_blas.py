"""The library without code that lends MLX a fast matrix product."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from model.devices.cpu.blas import alias_library

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="ELF and memfd are Linux's")


@linux_only
def test_an_alias_library_defines_its_names_at_the_addresses_given() -> None:
    e_machine = {"x86_64": 62, "aarch64": 183}[os.uname().machine]
    labs = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value
    assert labs
    fd = os.memfd_create("alias")
    os.write(fd, alias_library({"first_alias": labs, "second_alias": labs}, e_machine))
    library = ctypes.CDLL(f"/proc/self/fd/{fd}")
    os.close(fd)
    assert ctypes.cast(library.first_alias, ctypes.c_void_p).value == labs
    assert library.second_alias(-5) == 5


@linux_only
def test_mlx_multiplies_through_openblas_after_prepare() -> None:
    pytest.importorskip("scipy_openblas32")
    program = """
import ctypes, sys
from model.devices.cpu.blas import use_openblas
assert use_openblas()
import mlx.core as mx
a = mx.random.normal((70, 90)); b = mx.random.normal((90, 50))
exact = (a[:, :, None] * b[None]).sum(1)
with mx.stream(mx.cpu):
    assert mx.allclose(a @ b, exact, atol=1e-4).item()
assert use_openblas(), "a second call finds it done"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@linux_only
def test_products_stay_on_the_calling_thread_where_threads_of_ours_share_the_work() -> None:
    pytest.importorskip("scipy_openblas32")
    program = """
import ctypes
from pathlib import Path
from model.backend import prepare
prepare()
import numpy
from model.devices.cpu.blas import _openblas_path, use_one_thread
mine = ctypes.CDLL(str(_openblas_path()))
before = mine.scipy_openblas_get_num_threads()
use_one_thread(for_mlx=False)
assert mine.scipy_openblas_get_num_threads() == before
use_one_thread(for_mlx=True)
assert mine.scipy_openblas_get_num_threads() == 1
for path in (Path(numpy.__file__).parents[1] / "numpy.libs").glob("libscipy_openblas64_*.so"):
    assert ctypes.CDLL(str(path)).scipy_openblas_get_num_threads64_() == 1
"""
    subprocess.run([sys.executable, "-c", program], check=True)
