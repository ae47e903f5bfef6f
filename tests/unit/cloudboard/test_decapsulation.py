"""One opening in one child: real processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import psutil
import pytest

from tie.cloudboard.key_protection import opener, sealed_secret
from tie.cloudboard.key_protection.decapsulation import Decapsulator
from tie.envelope.refusal import EnvelopeRefused
from tie.envelope.suites import X25519_SHA256_AES128GCM

KEM = X25519_SHA256_AES128GCM.kem
PRIVATE, PUBLIC = KEM.generate()
BINDING_PRIVATE, BINDING = KEM.generate()


def with_decapsulator(scenario: Callable[[Decapsulator], Awaitable[None]]) -> None:
    async def run() -> None:
        decapsulator = Decapsulator()
        try:
            await decapsulator.start()
            await scenario(decapsulator)
        finally:
            decapsulator.close()

    asyncio.run(run())


async def opens(decapsulator: Decapsulator) -> None:
    secret, enc = KEM.encapsulate(PUBLIC)
    reply_enc, sealed = await decapsulator.open(5, PRIVATE, enc, BINDING)
    assert sealed_secret.open_sealed(BINDING_PRIVATE, 5, enc, reply_enc, sealed) == secret


def test_low_order_enc_and_binding_key_are_refused_and_the_next_job_is_served() -> None:
    async def scenario(decapsulator: Decapsulator) -> None:
        for enc, binding in ((bytes(32), BINDING), (KEM.encapsulate(PUBLIC)[1], bytes(32))):
            with pytest.raises(EnvelopeRefused, match="low-order"):
                await decapsulator.open(5, PRIVATE, enc, binding)
        await opens(decapsulator)

    with_decapsulator(scenario)


def test_a_killed_opener_is_succeeded_by_another() -> None:
    async def scenario(decapsulator: Decapsulator) -> None:
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        await opens(decapsulator)
        await opens(decapsulator)

    with_decapsulator(scenario)


def test_each_opening_has_a_child_of_its_own_that_is_gone_afterwards() -> None:
    async def scenario(decapsulator: Decapsulator) -> None:
        (process,) = psutil.Process().children()
        before = {child.pid for child in process.children()}
        for _ in range(3):
            await opens(decapsulator)
        async with asyncio.timeout(10):
            while len(before & {child.pid for child in process.children()}) > len(before) - 3:
                await asyncio.sleep(0.01)

    with_decapsulator(scenario)


def test_nothing_is_left_after_close() -> None:
    async def scenario(decapsulator: Decapsulator) -> None:
        everyone = psutil.Process().children(recursive=True)
        assert everyone
        decapsulator.close()
        _, still_alive = await asyncio.to_thread(psutil.wait_procs, everyone, 10)
        assert not still_alive

    with_decapsulator(scenario)


def test_a_sealed_secret_is_bound_to_key_number_enc_and_helper() -> None:
    secret, enc = KEM.encapsulate(PUBLIC)
    reply_enc, sealed = sealed_secret.seal(BINDING, 5, enc, secret)
    other_enc = KEM.encapsulate(PUBLIC)[1]
    for private, number, bound in ((BINDING_PRIVATE, 6, enc), (BINDING_PRIVATE, 5, other_enc), (PRIVATE, 5, enc)):
        with pytest.raises(EnvelopeRefused):
            sealed_secret.open_sealed(private, number, bound, reply_enc, sealed)


def test_the_reply_holds_no_secret_in_clear() -> None:
    secret, enc = KEM.encapsulate(PUBLIC)
    reply = opener.open_job(bytes([5]) + PRIVATE + enc + BINDING)
    assert len(reply) == 1 + opener.REPLY_BYTES
    assert secret not in reply
    assert PRIVATE not in reply
