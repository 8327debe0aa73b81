# rpc: the formats, and the stream machine joined in memory. No ports, no clock.
ampd_test(test_rpc_wire SUITE unit SOURCES test_rpc_wire.c LINK arpc_wire)
