import pytest

from loopworth.ledger import Convention, ledger
from loopworth.spec import ModelSpec

# Published looped models. The spec has two norms a layer and no exit gate; the differences are
# exactly the vectors that these models have beside them.


def test_huginn_0125() -> None:
    d, vocab = 5280, 65536
    spec = ModelSpec(
        d, n_prelude=2, n_recur=4, n_coda=2, recurrence=32, injection="linear", vocab_size=vocab,
        context=4096, head_dim=96, mlp_ratio=17920 / d, mlp_kind="swiglu", tied_embeddings=True,
    )  # fmt: skip
    assert spec.mlp_width == 17920
    account = ledger(spec)
    count = account.count()
    extra = 4 * 4 * d  # four layers: two more norms, and a bias on q and on k
    assert count.n_injection == 55_756_800
    assert count.n_rec + extra == 1_637_349_120
    assert account.count(Convention("excluded", norms=False)).n_once + 4 * 6 * d == 1_581_592_320
    # Two of our three global norms are not there.
    assert account.parameters + 2 * extra - 2 * d == 3_564_976_800
    assert account.kv_slots == 132


@pytest.mark.parametrize(
    ("layers", "n_rec", "total", "slots"),
    [(24, 1_233_321_984, 1_434_652_673, 96), (48, 2_466_643_968, 2_667_974_657, 192)],
)
def test_ouro(layers: int, n_rec: int, total: int, slots: int) -> None:
    d = 2048
    account = ledger(
        ModelSpec(
            d, n_prelude=0, n_recur=layers, n_coda=0, recurrence=4, injection="passthrough",
            vocab_size=49152, mlp_ratio=5632 / d, mlp_kind="swiglu",
        )
    )  # fmt: skip
    extra = layers * 2 * d  # sandwich norms
    gate = d + 1  # the exit gate
    assert account.count().n_rec + extra == n_rec
    assert account.count(Convention(norms=False)).n_once == 0
    assert account.parameters + extra + gate - 2 * d == total  # one global norm, not three
    assert account.kv_slots == slots
    assert account.kv_bytes_per_token() == slots / 96 * 768 * 1024
