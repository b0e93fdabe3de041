"""Lends MLX's Linux CPU backend a fast matrix product.

``mlx-cpu`` calls ``cblas_sgemm`` of a reference BLAS (about 5 GFLOP/s on two cores). The wheel
``scipy-openblas32`` carries OpenBLAS (170 GFLOP/s there) and needs nothing else of the system, but
its symbols have a prefix: ``scipy_cblas_sgemm``. The dynamic linker resolves a symbol through the
global scope first, so a library loaded with ``RTLD_GLOBAL`` *before* MLX that defines the plain names
takes the calls. :func:`alias_library` writes such a library: an ELF file without any code, whose
absolute symbols (``SHN_ABS``) are the addresses of OpenBLAS's functions in this process.

ELF fields: System V gABI, chapters 4 and 5. Absolute symbols are honoured since glibc 2.28.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from importlib import util
from pathlib import Path

_ROUTINES = ("sgemm", "dgemm", "cgemm")  # what libmlx.so imports from cblas
_E_MACHINE = {"x86_64": 62, "aarch64": 183}
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_DT_NULL, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 0, 4, 5, 6, 10, 11, 14
_GLOBAL_FUNC, _SHN_ABS = (1 << 4) | 2, 0xFFF1
_RW = 6
_EHDR, _PHDR, _SYM, _PAGE = 64, 56, 24, 4096


def use_openblas() -> bool:
    """Route MLX's matrix products through OpenBLAS; call before ``mlx.core`` is first imported.

    Returns:
        Whether OpenBLAS takes the calls. False, with nothing changed, where the wheel is missing,
        the machine is unknown, or the linker does not honour absolute symbols.
    """
    library = _openblas_path()
    machine = _E_MACHINE.get(platform.machine())
    if library is None or machine is None:
        return False
    if _address(ctypes.CDLL(None), "cblas_sgemm"):  # by an earlier call, or somebody else's BLAS
        return True
    assert "mlx.core" not in sys.modules, "MLX was imported before its backend was prepared"
    openblas = ctypes.CDLL(str(library))
    addresses = {f"cblas_{r}": _address(openblas, f"scipy_cblas_{r}") for r in _ROUTINES}
    # A file in memory: no temporary directory has to be writable, nothing is left behind.
    fd = os.memfd_create("crossturn-cblas")
    try:
        os.write(fd, alias_library(addresses, machine))
        ctypes.CDLL(f"/proc/self/fd/{fd}", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    finally:
        os.close(fd)
    return _address(ctypes.CDLL(None), "cblas_sgemm") == addresses["cblas_sgemm"]


def use_one_thread(*, for_mlx: bool) -> None:
    """Keep NumPy's OpenBLAS, and MLX's too if ``for_mlx``, to the calling thread.

    Prompts are read by threads that each call NumPy (:class:`model.devices.cpu.rows.Crew`). An OpenBLAS that
    starts threads of its own beside them takes their cores away: its threads go on looking for work for a
    while after each product. So do those of MLX's, which gain nothing in steps over weights that fit the
    caches.
    """
    from threadpoolctl import ThreadpoolController

    libraries = ThreadpoolController().select(internal_api="openblas")
    of_mlx = _openblas_path()
    kept = [
        library.filepath
        for library in libraries.lib_controllers
        if for_mlx or of_mlx is None or not of_mlx.samefile(library.filepath)
    ]
    libraries.select(filepath=kept).limit(limits=1)


def alias_library(addresses: dict[str, int], machine: int) -> bytes:
    """A 64-bit little-endian ELF shared object that defines ``addresses`` as absolute symbols.

    Args:
        addresses: symbol name to address in this process.
        machine: the ELF ``e_machine`` number.
    """
    names = b"\0"
    symbols = bytes(_SYM)
    for name, address in addresses.items():
        symbols += struct.pack("<IBBHQQ", len(names), _GLOBAL_FUNC, 0, _SHN_ABS, address, 0)
        names += name.encode() + b"\0"
    soname = len(names)
    names += b"libcrossturn-cblas.so\0"
    names += bytes(-len(names) % 8)
    n = len(addresses) + 1
    # One bucket: the chain runs through every symbol, 1 -> 2 -> ... -> 0.
    table = struct.pack(f"<{3 + n}I", 1, n, 1, 0, *range(2, n), 0)
    table += bytes(-len(table) % 8)

    at_symbols = _EHDR + 3 * _PHDR
    at_names = at_symbols + len(symbols)
    at_table = at_names + len(names)
    at_dynamic = at_table + len(table)
    tags = (
        (_DT_HASH, at_table),
        (_DT_SYMTAB, at_symbols),
        (_DT_STRTAB, at_names),
        (_DT_STRSZ, len(names)),
        (_DT_SYMENT, _SYM),
        (_DT_SONAME, soname),
        (_DT_NULL, 0),
    )
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in tags)
    size = at_dynamic + len(dynamic)
    ident = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    header = struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, _EHDR, 0, 0, _EHDR, _PHDR, 3, 0, 0, 0)
    segments = (
        # The linker relocates the dynamic section in place, so the one segment is writable.
        struct.pack("<IIQQQQQQ", _PT_LOAD, _RW, 0, 0, 0, size, size, _PAGE),
        struct.pack(
            "<IIQQQQQQ", _PT_DYNAMIC, _RW, at_dynamic, at_dynamic, at_dynamic, *[len(dynamic)] * 2, 8
        ),
        # Without this header some linkers take it that the stack must be executable.
        struct.pack("<IIQQQQQQ", _PT_GNU_STACK, _RW, 0, 0, 0, 0, 0, 16),
    )
    return ident + header + b"".join(segments) + symbols + names + table + dynamic


def _openblas_path() -> Path | None:
    spec = util.find_spec("scipy_openblas32") if sys.platform == "linux" else None
    if spec is None or spec.origin is None:
        return None
    return next((Path(spec.origin).parent / "lib").glob("libscipy_openblas*.so"), None)


def _address(library: ctypes.CDLL, name: str) -> int:
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    except AttributeError:
        return 0
