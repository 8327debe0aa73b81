# rpc: the formats, and the stream machine joined in memory. No ports, no clock.
ampd_test(test_rpc_wire SUITE unit SOURCES test_rpc_wire.c LINK arpc_wire)
ampd_test(test_rpc_link SUITE unit SOURCES test_rpc_link.c rpc_pair.c LINK arpc_h2)
ampd_test(test_rpc_limits SUITE unit SOURCES test_rpc_limits.c rpc_pair.c LINK arpc_h2)
ampd_test(test_rpc_hostile SUITE unit SOURCES test_rpc_hostile.c rpc_raw.c rpc_pair.c LINK arpc_h2)
ampd_test(test_rpc_call SUITE unit SOURCES test_rpc_call.c LINK arpc)
target_compile_definitions(test_rpc_call PRIVATE RPC_CALL_SOURCE="${PROJECT_SOURCE_DIR}/rpc/h2/call.c")
ampd_test(test_rpc_blank SUITE unit SOURCES test_rpc_blank.c rpc_pair.c LINK arpc_h2)
ampd_test(test_rpc_life SUITE unit SOURCES test_rpc_life.c rpc_raw.c rpc_pair.c LINK arpc_h2)
