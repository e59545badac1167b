# The chain, blocks offered for checking, declarations and templates. Hashes are 32 bytes in internal order; transactions
# and blocks are network serialisation with witness; an empty Data stands for a transaction that is not there.

@0xc77d03df6a41b505;

using Proxy = import "proxy.capnp";
using Common = import "common.capnp";

const maxDouble :Float64 = 1.7976931348623157e308;
const maxMoney :Int64 = 2100000000000000;

interface Mining {
    isTestChain @0 (context :Proxy.Context) -> (result :Bool);
    isInitialBlockDownload @1 (context :Proxy.Context) -> (result :Bool);
    getTip @2 (context :Proxy.Context) -> (result :Common.BlockRef, hasResult :Bool);
    waitTipChanged @3 (context :Proxy.Context, currentTip :Data, timeout :Float64 = .maxDouble) -> (result :Common.BlockRef);
    createNewBlock @4 (context :Proxy.Context, options :BlockCreateOptions, cooldown :Bool = true) -> (result :BlockTemplate);
    checkBlock @5 (context :Proxy.Context, block :Data, options :BlockCheckOptions) -> (reason :Text, debug :Text, result :Bool);
    interrupt @6 () -> ();
    submitBlock @7 (context :Proxy.Context, block :Data) -> (reason :Text, debug :Text, result :Bool);
    getTransactionsByTxID @8 (context :Proxy.Context, txids :List(Data)) -> (result :List(Data));
    getTransactionsByWitnessID @9 (context :Proxy.Context, wtxids :List(Data)) -> (result :List(Data));
    collectTxs @10 (context :Proxy.Context, wtxids :List(Data)) -> (result :TxCollection);
}

# A proposal at the time of writing: nothing but these four lines says which number each method has.
interface TxCollection {
    destroy @0 (context :Proxy.Context) -> ();
    makeTemplate @1 (context :Proxy.Context, prevhash :Data, coinbase :Data) -> (reason :Text, debug :Text, result :BlockTemplate);
    unknownTxPos @2 (context :Proxy.Context) -> (result :List(UInt32));
    addMissingTxs @3 (context :Proxy.Context, txs :List(Data)) -> ();
}

interface BlockTemplate {
    destroy @0 (context :Proxy.Context) -> ();
    getBlockHeader @1 (context :Proxy.Context) -> (result :Data);
    getBlock @2 (context :Proxy.Context) -> (result :Data);
    # Satoshis, and sigop cost, of each transaction after the coinbase.
    getTxFees @3 (context :Proxy.Context) -> (result :List(Int64));
    getTxSigops @4 (context :Proxy.Context) -> (result :List(Int64));
    getCoinbaseTx @5 (context :Proxy.Context) -> (result :CoinbaseTx);
    getCoinbaseMerklePath @6 (context :Proxy.Context) -> (result :List(Data));
    submitSolution @7 (context :Proxy.Context, version :UInt32, timestamp :UInt32, nonce :UInt32, coinbase :Data) -> (result :Bool);
    waitNext @8 (context :Proxy.Context, options :BlockWaitOptions) -> (result :BlockTemplate);
    interruptWait @9 () -> ();
}

struct BlockCreateOptions {
    useMempool @0 :Bool = true;
    # Weight units, and sigop cost, kept free for the coinbase.
    blockReservedWeight @1 :UInt64 = 8000;
    coinbaseOutputMaxAdditionalSigops @2 :UInt64 = 400;
}

struct BlockWaitOptions {
    # Milliseconds.
    timeout @0 :Float64 = .maxDouble;
    # Satoshis by which fees must have risen.
    feeThreshold @1 :Int64 = .maxMoney;
}

struct BlockCheckOptions {
    checkMerkleRoot @0 :Bool = true;
    checkPow @1 :Bool = true;
}

struct CoinbaseTx {
    version @0 :UInt32;
    sequence @1 :UInt32;
    scriptSigPrefix @2 :Data;
    witness @3 :Data;
    # Satoshis.
    blockRewardRemaining @4 :Int64;
    # Each a serialised output, to stand last.
    requiredOutputs @5 :List(Data);
    lockTime @6 :UInt32;
}
