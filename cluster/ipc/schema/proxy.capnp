# Threads on which a client has its calls carried out: those that name one thread run one after the other.

@0xcc316e3f71a040fb;

interface ThreadMap {
    makeThread @0 (name :Text) -> (result :Thread);
    makePool @1 (count :UInt32) -> ();
}

interface Thread {
    getName @0 () -> (result :Text);
    # Ours: the server calls it on a thread that a client hands back, to find its own object behind the capability.
    getId @1 () -> (result :UInt64);
}

struct Context {
    thread @0 :Thread;
    callbackThread @1 :Thread;
}
