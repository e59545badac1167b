# JSON-RPC over the same socket: request and result are JSON texts.

@0x9c3505dc45e146ac;

using Proxy = import "proxy.capnp";

interface Rpc {
    executeRpc @0 (context :Proxy.Context, request :Text, uri :Text, user :Text) -> (result :Text);
}
