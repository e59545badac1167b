# What several interfaces use.

@0xcd2c6232cb484a28;

struct BlockRef {
    # 32 bytes, internal order.
    hash @0 :Data;
    height @1 :Int32;
}
