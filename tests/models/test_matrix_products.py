"""float32 products take the faster library, stay exact, and leave the process's setting as it was."""

import threading

import pytest
import torch

import adlm.models.matrix_products as module
from adlm.models.matrix_products import faster_library, inference_products, keeps_float32, multiplied_by

SETTINGS = torch.backends.mkldnn.matmul


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    faster_library.cache_clear()
    before = SETTINGS.fp32_precision
    yield
    assert SETTINGS.fp32_precision == before
    faster_library.cache_clear()


def machine(monkeypatch, *, capability="AVX512", maker="AuthenticAMD", exact=True):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(module, "_maker", lambda: maker)
    monkeypatch.setattr(module, "keeps_float32", lambda library: exact)


@pytest.mark.parametrize(
    ("differs", "library"),
    [
        ({}, "onednn"),
        ({"capability": "AVX2"}, "default"),
        ({"maker": "GenuineIntel"}, "default"),
        ({"maker": ""}, "default"),
        ({"exact": False}, "default"),
    ],
)
def test_onednn_is_used_where_mkl_leaves_avx512_unused_and_products_stay_exact(monkeypatch, differs, library):
    machine(monkeypatch, **differs)
    found, why = faster_library()
    assert found == library
    assert why


def test_products_of_this_machine_are_in_float32():
    assert keeps_float32("default")
    assert keeps_float32(faster_library()[0])


def test_a_library_that_rounds_is_noticed(monkeypatch):
    products = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: products(a.bfloat16(), b.bfloat16()).to(a.dtype))
    assert not keeps_float32("default")


def test_the_setting_holds_until_the_last_thread_is_done():
    entered, leave = threading.Barrier(2), threading.Event()

    def other():
        with multiplied_by("onednn"):
            entered.wait(10)
            leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    with multiplied_by("onednn"):
        entered.wait(10)
        assert SETTINGS.fp32_precision == "bf16"
    assert SETTINGS.fp32_precision == "bf16"
    leave.set()
    thread.join()


def test_only_large_products_without_gradients_change_the_library(monkeypatch):
    machine(monkeypatch)
    large, small = torch.ones(512, 64), torch.ones(1, 64)
    for x, grad, expected in ((large, False, "bf16"), (small, False, "none"), (large, True, "none")):
        with torch.set_grad_enabled(grad), inference_products(x, 64):
            assert SETTINGS.fp32_precision == expected


def test_an_error_inside_restores_the_setting():
    with pytest.raises(ValueError, match="inside"), multiplied_by("onednn"):
        raise ValueError("inside")
