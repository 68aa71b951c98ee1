"""Server reflection under grpc.reflection.v1 and v1alpha, complete enough for ghz and grpcurl.

The two protocols are one on the wire, and the standard servicer speaks the older; here it answers under both names.
Added: symbols of methods, which the standard lookup does not find, and the newer protocol's own descriptor, which no
package carries. Knows descriptors; knows no service by name but reflection's own.
"""

from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, text_format
from google.protobuf.descriptor_pool import Default as default_pool
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

OLD_PACKAGE = "grpc.reflection.v1alpha"
NEW_PACKAGE = "grpc.reflection.v1"
NEW_FILE = "grpc/reflection/v1/reflection.proto"
SERVICE_NAMES = (f"{NEW_PACKAGE}.ServerReflection", f"{OLD_PACKAGE}.ServerReflection")


def add_reflection(server: grpc.aio.Server, service_names: Sequence[str]) -> None:
    """Serve reflection of the named services, and of itself."""
    servicer = ReflectionServicer((*service_names, *SERVICE_NAMES), pool=_Pool())
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in SERVICE_NAMES:
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler}),)
        )


class _Pool:
    """The process's descriptors and the newer reflection's, as one pool to look things up in."""

    def __init__(self) -> None:
        self._pools = (default_pool(), _new_reflection())

    def FindFileByName(self, name: str) -> Any:
        return self._first("FindFileByName", name)

    def FindFileContainingSymbol(self, symbol: str) -> Any:
        try:
            return self._first("FindFileContainingSymbol", symbol)
        except KeyError:
            return self._first("FindMethodByName", symbol).containing_service.file

    def FindMessageTypeByName(self, name: str) -> Any:
        return self._first("FindMessageTypeByName", name)

    def FindExtensionByNumber(self, message: Any, number: int) -> Any:
        return default_pool().FindExtensionByNumber(message, number)

    def FindAllExtensions(self, message: Any) -> Any:
        return default_pool().FindAllExtensions(message)

    def _first(self, lookup: str, name: str) -> Any:
        for pool in self._pools:
            try:
                return getattr(pool, lookup)(name)
            except KeyError:
                continue
        raise KeyError(name)


def _new_reflection() -> DescriptorPool:
    """A pool of its own: a package that some day carries this file must be free to register it."""
    file = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    text = text_format.MessageToString(file).replace(OLD_PACKAGE, NEW_PACKAGE)
    renamed = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    renamed.name = NEW_FILE
    renamed.ClearField("options")
    pool = DescriptorPool()
    pool.Add(renamed)
    return pool
