"""What the device is, and one plain line where MLX cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from model import backend
from model.device import Device
from model.devices.cpu import host
from model.devices.cpu.device import CpuDevice
from model.devices.cuda.device import CudaDevice
from model.devices.metal.device import MetalDevice
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
    ("device", "n_bytes", "limit"),
    [
        (CpuDevice("a CPU", 2**34, 2), 2**30, 7),
        (MetalDevice("a chip", 2**34), 2**30, 2**30),
        (CudaDevice("a GPU", 2**34), -5, 2**28),
    ],
    ids=["cpu", "metal", "cuda"],
)
def test_what_mlx_keeps_of_freed_memory_is_limited_on_a_gpu(device: Device, n_bytes: int, limit: int) -> None:
    usual = mx.set_cache_limit(7)
    try:
        device.settle_memory(n_bytes)
        assert mx.set_cache_limit(usual) == limit
    finally:
        mx.set_cache_limit(usual)


def test_importing_the_package_does_not_import_mlx() -> None:
    modules = "model, model.backend, model.checkpoint.hub, model.checkpoint.config"
    program = f"import sys, {modules}; assert 'mlx.core' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_float32_means_float32_in_the_products_that_tests_compare() -> None:
    a, b = (np.random.default_rng(seed).normal(size=(256, 256)).astype(np.float32) for seed in (1, 2))
    exact = a.astype(np.float64) @ b
    found = np.array(mx.array(a) @ mx.array(b))
    assert np.abs(found - exact).max() < 1e-5 * np.abs(exact).max()  # TF32 is off by 1e-3


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty tree of cgroups, of which this process is in /app/worker."""
    own = tmp_path / "self"
    own.write_text("0::/app/worker\n")
    monkeypatch.setattr(host, "_OWN_CGROUPS", own)
    monkeypatch.setattr(host, "_CGROUPS", tmp_path / "cgroup")
    (tmp_path / "cgroup" / "app" / "worker").mkdir(parents=True)
    return tmp_path / "cgroup"


def test_memory_is_the_machines_where_no_cgroup_bounds_it(cgroups: Path) -> None:
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert host.usable_memory() == installed
    (cgroups / "app" / "worker" / "memory.max").write_text("max\n")
    assert host.usable_memory() == installed


@pytest.mark.parametrize("folder", ["", "app", "app/worker"])
def test_memory_is_what_the_tightest_cgroup_allows(folder: str, cgroups: Path) -> None:
    for path in ("", "app", "app/worker"):
        (cgroups / path / "memory.max").write_text(f"{2**29 if path == folder else 2**30}\n")
    assert host.usable_memory() == 2**29
    assert CpuDevice.here().n_memory_bytes == 2**29


def test_memory_of_a_container_is_read_where_the_root_stands_in_for_its_group(cgroups: Path) -> None:
    host._OWN_CGROUPS.write_text("0::/system.slice/docker-1234.scope\n")
    (cgroups / "memory.max").write_text("1073741824\n")
    assert host.usable_memory() == 2**30


def test_the_limits_of_the_first_version_of_cgroups_hold_too(cgroups: Path) -> None:
    host._OWN_CGROUPS.write_text("9:memory:/box\n8:cpu,cpuacct:/box\n1:name=systemd:/\n0::/\n")
    for controllers, name, text in (
        ("memory", "memory.limit_in_bytes", "1073741824"),
        ("cpu,cpuacct", "cpu.cfs_quota_us", "50000"),
        ("cpu,cpuacct", "cpu.cfs_period_us", "100000"),
    ):
        folder = cgroups / controllers / "box"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    assert host.usable_memory() == 2**30
    assert host.n_usable_cores() == 1


@pytest.mark.parametrize(("quota", "n"), [("max 100000", None), ("100000 100000", 1), ("5000 100000", 1)])
def test_no_more_cores_are_used_than_a_quota_comes_to(quota: str, n: int | None, cgroups: Path) -> None:
    (cgroups / "app" / "cpu.max").write_text(quota)
    assert host.n_usable_cores() == (n or len(os.sched_getaffinity(0)))
