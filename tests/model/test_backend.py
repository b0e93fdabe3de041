"""What the device is, and one plain line where MLX cannot run."""

from __future__ import annotations

import subprocess
import sys

import mlx.core as mx
import pytest

from model import backend
from model.errors import BackendError


def test_a_missing_mlx_is_one_line_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend.util, "find_spec", lambda _: None)
    with pytest.raises(BackendError, match=r"MLX is not installed: pip install 'crossturn") as caught:
        backend.prepare()
    assert "\n" not in str(caught.value)


def test_h05_an_mlx_without_a_backend_is_one_line_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    with pytest.raises(BackendError, match="MLX has no backend here") as caught:
        backend.prepare()
    assert "\n" not in str(caught.value)


def test_the_device_has_a_name_and_memory() -> None:
    backend.prepare()
    found = backend.detect()
    assert found.name
    assert found.n_memory_bytes > 1 << 30
    assert found.dtype == ("float32" if found.kind == "cpu" else None)


@pytest.mark.parametrize(
    ("kind", "n_bytes", "limit"), [("cpu", 2**30, 7), ("metal", 2**30, 2**30), ("cuda", -5, 2**28)]
)
def test_what_mlx_keeps_of_freed_memory_is_limited_on_a_gpu(
    kind: backend.BackendKind, n_bytes: int, limit: int
) -> None:
    usual = mx.set_cache_limit(7)
    try:
        backend.settle_memory(backend.Backend(kind, "a device", 2**34, None), n_bytes)
        assert mx.set_cache_limit(usual) == limit
    finally:
        mx.set_cache_limit(usual)


def test_importing_the_package_does_not_import_mlx() -> None:
    modules = "model, model.backend, model.checkpoint.hub, model.checkpoint.config"
    program = f"import sys, {modules}; assert 'mlx.core' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
