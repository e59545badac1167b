# Gives back what it is given: a client's way to see that the connection works.

@0x888b4f7f51e691f7;

using Proxy = import "proxy.capnp";

interface Echo {
    destroy @0 (context :Proxy.Context) -> ();
    echo @1 (context :Proxy.Context, echo :Text) -> (result :Text);
}
