"""What the device is, and one plain line where MLX cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from model import backend
from model.checkpoint.load import load
from model.device import Device
from model.devices.cpu import host
from model.devices.cpu.device import CpuDevice
from model.devices.cuda.device import CudaDevice
from model.devices.metal import device as metal_device
from model.devices.metal.device import MetalDevice
from model.errors import BackendError
from tests.fakes import tiny


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


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """What MLX is told of memory, by the name of the function."""
    told: dict[str, list[int]] = {}
    for name in ("set_wired_limit", "set_memory_limit", "set_cache_limit"):
        monkeypatch.setattr(mx, name, told.setdefault(name, []).append)
    return told


def test_m3_nothing_is_wired_on_a_mac_unless_it_is_asked_for(limits: dict[str, list[int]]) -> None:
    mac = MetalDevice("a chip", 2**34)
    mac.begin_loading()
    mac.settle_memory(2**30)
    assert limits["set_wired_limit"] == []
    mac.settle_memory(2**30, wired_bytes=2**31)
    mac.settle_memory(2**30, wired_bytes=2**40)
    assert limits["set_wired_limit"] == [2**31, 2**34]


@pytest.mark.parametrize("device", [CpuDevice("a CPU", 2**34, 2), CudaDevice("a GPU", 2**34)])
def test_m3_to_wire_memory_elsewhere_is_refused(device: Device) -> None:
    with pytest.raises(BackendError, match="on a Mac alone"):
        device.settle_memory(2**30, wired_bytes=1)


def test_m4_a_mac_loads_with_a_small_pool_and_a_limit_at_what_is_recommended(
    limits: dict[str, list[int]], tmp_path: Path
) -> None:
    device = MetalDevice("a chip", 2**34)
    load(tiny.write_text(tmp_path, replace(tiny.DENSE, gdn_head_dim=16)), device=device)
    assert limits["set_memory_limit"] == [2**34]
    assert limits["set_cache_limit"] == [256 << 20]


def test_m4_attentions_blocks_are_counted_in_what_a_part_may_take(tmp_path: Path) -> None:
    forward = load(tiny.write_text(tmp_path), device=CpuDevice("a CPU", 2**34, 2))
    forward.fit_parts(CpuDevice.attention_bytes + 300 * forward._token_bytes)
    assert forward.part_tokens == 256
    forward.fit_parts(CpuDevice.attention_bytes + 400 * forward._token_bytes)
    assert forward.part_tokens == 384


@pytest.mark.parametrize(("level", "is_short"), [(1, False), (2, True), (4, True)])
def test_m4_a_mac_is_short_of_memory_when_macos_says_so(
    level: int, is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Libc:
        def sysctlbyname(self, name: bytes, value: Any, *_: object) -> int:
            asked.append(name)
            value._obj.value = level
            return 0

    monkeypatch.setattr(metal_device.ctypes, "CDLL", lambda _: Libc())
    assert MetalDevice("a chip", 2**34).is_short_of_memory() == is_short
    assert asked == [b"kern.memorystatus_vm_pressure_level"]


def test_m4_without_macos_nobody_says_that_memory_is_short() -> None:
    assert metal_device.pressure_level() == 1 or sys.platform == "darwin"


@pytest.mark.parametrize(
    ("used", "cached", "is_short"),
    [(2**29, 0, False), (2**30 - 2**20, 0, True), (2**30 - 2**20, 2**29, False)],
)
def test_m4_a_cpu_is_short_of_memory_when_its_cgroup_has_little_left(
    used: int, cached: int, is_short: bool, cgroups: Path
) -> None:
    folder = cgroups / "app"
    (folder / "memory.max").write_text(str(2**30))
    (folder / "memory.current").write_text(str(used))
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\n")
    assert CpuDevice.here().is_short_of_memory() == is_short
