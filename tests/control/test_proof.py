from __future__ import annotations

import hmac
import os

import pytest

from hpctrain.control.proof import MAC_BYTES, _keyed, _mac


@pytest.mark.parametrize("size", [0, 1, 55, 56, 64, 1000])
def test_the_mac_of_a_record_is_hmac_sha256(size: int) -> None:
    key, content = os.urandom(32), os.urandom(size)
    expected = hmac.digest(key, (7).to_bytes(8, "big") + content, "sha256")
    # Each record is counted with the hashes of the same key.
    keyed = _keyed(key)
    for _ in range(2):
        assert _mac(keyed, 7, memoryview(content)) == expected[:MAC_BYTES]
