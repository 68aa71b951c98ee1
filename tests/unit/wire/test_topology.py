"""The table of links: addresses that are distinct, usable, and refused where they cannot be."""

from typing import Literal

import pytest

from services.wire.topology import LINKS, STATUS, SUBMIT, AddressError, Topology

GATEWAYS = ("gateway-0", "gateway-1")


def _topology(transport: Literal["ipc", "tcp"], run_dir: str = "/run/t", base_port: int = 5700) -> Topology:
    return Topology(transport, run_dir, "127.0.0.1", base_port, GATEWAYS)


def _addresses(topology: Topology) -> list[str]:
    return [topology.address(link, gateway) for link in LINKS for gateway in (GATEWAYS if link.per_gateway else ("",))]


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_every_receiving_end_has_an_address_of_its_own(transport: Literal["ipc", "tcp"]) -> None:
    addresses = _addresses(_topology(transport))
    assert len(addresses) == 9
    assert len(set(addresses)) == 9
    assert all(address.startswith(f"{transport}://") for address in addresses)


def test_ipc_addresses_are_named_after_link_and_gateway() -> None:
    topology = _topology("ipc")
    assert topology.address(SUBMIT) == "ipc:///run/t/submit"
    assert topology.address(STATUS, "gateway-1") == "ipc:///run/t/status-gateway-1"


def test_tcp_ports_follow_each_other_from_the_base_port() -> None:
    ports = [int(address.rpartition(":")[2]) for address in _addresses(_topology("tcp"))]
    assert ports == list(range(5700, 5709))


def test_an_ipc_path_may_be_as_long_as_the_kernel_takes_and_no_longer() -> None:
    longest = "/" + "d" * (107 - len("/status-gateway-0") - 1)
    _topology("ipc", longest).check()
    with pytest.raises(AddressError, match=r"108 bytes, a socket path may have 107: choose a shorter links\.run_dir"):
        _topology("ipc", longest + "d").check()


def test_the_length_of_a_path_is_counted_in_bytes() -> None:
    with pytest.raises(AddressError, match="choose a shorter"):
        _topology("ipc", "/" + "é" * 60).check()


def test_where_each_service_has_a_host_senders_name_it_and_receivers_bind_their_own() -> None:
    topology = Topology("tcp", "", "{receiver}.internal", 5700, GATEWAYS, bind="*")
    topology.check()
    assert topology.address(SUBMIT) == "tcp://scheduler.internal:5700"
    assert topology.bound_address(SUBMIT) == "tcp://*:5700"
    assert topology.address(STATUS, "gateway-1") == "tcp://gateway-1.internal:5702"
    assert topology.bound_address(STATUS, "gateway-1") == "tcp://*:5702"


def test_a_host_for_each_receiver_is_nothing_to_bind() -> None:
    with pytest.raises(AddressError, match=r"links\.bind"):
        Topology("tcp", "", "{receiver}", 5700, GATEWAYS).check()


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_with_one_host_both_ends_have_one_address(transport: Literal["ipc", "tcp"]) -> None:
    topology = _topology(transport)
    for link in LINKS:
        for gateway in GATEWAYS if link.per_gateway else ("",):
            assert topology.address(link, gateway) == topology.bound_address(link, gateway)


def test_a_port_beyond_the_last_is_refused() -> None:
    _topology("tcp", base_port=65527).check()
    with pytest.raises(AddressError, match="65536"):
        _topology("tcp", base_port=65528).check()


@pytest.mark.parametrize("gateway", ["", "gateway-2"])
def test_a_gateway_that_is_not_in_the_settings_has_no_address(gateway: str) -> None:
    with pytest.raises(AddressError, match="no link status"):
        _topology("ipc").address(STATUS, gateway)


def test_services_at_both_ends_are_the_four() -> None:
    assert {link.sender for link in LINKS} == {link.receiver for link in LINKS}
    assert {link.sender for link in LINKS} == {"gateway", "scheduler", "executor", "detokenizer"}
