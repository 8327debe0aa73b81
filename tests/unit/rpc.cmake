# rpc: the formats, and the stream machine joined in memory. No ports, no clock.
ampd_test(test_rpc_wire SUITE unit SOURCES test_rpc_wire.c LINK arpc_wire)
ampd_test(test_rpc_retry SUITE unit SOURCES test_rpc_retry.c LINK arpc_wire)
ampd_test(test_rpc_again SUITE unit SOURCES test_rpc_again.c rpc_script.c rpc_frames.c rpc_pair.c LINK arpc_h2)
ampd_test(test_rpc_kept SUITE unit SOURCES test_rpc_kept.c rpc_script.c rpc_frames.c rpc_pair.c LINK arpc_h2)
ampd_test(test_rpc_hostile_server SUITE unit SOURCES test_rpc_hostile_server.c rpc_script.c rpc_frames.c rpc_pair.c
          ../conformance/attacks/bytes.c LINK arpc_h2)
ampd_test(test_rpc_link SUITE unit SOURCES test_rpc_link.c rpc_pair.c LINK arpc_h2)
ampd_test(test_rpc_limits SUITE unit SOURCES test_rpc_limits.c rpc_pair.c LINK arpc_h2)
ampd_test(test_rpc_hostile SUITE unit SOURCES test_rpc_hostile.c rpc_raw.c rpc_pair.c LINK arpc_h2)
ampd_test(test_rpc_abuse SUITE unit SOURCES test_rpc_abuse.c rpc_raw.c rpc_pair.c ../conformance/attacks/bytes.c LINK arpc)
ampd_test(test_rpc_budget SUITE unit SOURCES test_rpc_budget.c rpc_raw.c rpc_pair.c LINK arpc)
ampd_test(test_rpc_budget_random SUITE unit SOURCES test_rpc_budget_random.c rpc_frames.c rpc_pair.c LINK arpc)
ampd_test(test_rpc_unsent SUITE unit SOURCES test_rpc_unsent.c rpc_raw.c rpc_frames.c rpc_pair.c LINK arpc)
ampd_test(test_rpc_unadmitted SUITE unit SOURCES test_rpc_unadmitted.c rpc_raw.c rpc_pair.c LINK arpc)
ampd_test(test_rpc_fair_queue SUITE unit SOURCES test_rpc_fair_queue.c LINK arpc)
ampd_test(test_rpc_stats SUITE unit SOURCES test_rpc_stats.c rpc_pair.c LINK arpc_h2)
ampd_test(test_rpc_call SUITE unit SOURCES test_rpc_call.c LINK arpc)
target_compile_definitions(test_rpc_call PRIVATE RPC_CALL_SOURCE="${PROJECT_SOURCE_DIR}/rpc/h2/call.c")
ampd_test(test_rpc_blank SUITE unit SOURCES test_rpc_blank.c rpc_pair.c LINK arpc_h2)
ampd_test(test_rpc_life SUITE unit SOURCES test_rpc_life.c rpc_raw.c rpc_pair.c LINK arpc_h2)
ampd_test(test_rpc_receive_buffer SUITE unit SOURCES test_rpc_receive_buffer.c rpc_raw.c rpc_pair.c LINK arpc_h2)
ampd_test(test_rpc_gzip SUITE unit SOURCES test_rpc_gzip.c rpc_raw.c rpc_pair.c LINK arpc_h2)
ampd_test(test_rpc_heads SUITE unit SOURCES test_rpc_heads.c rpc_raw.c rpc_pair.c LINK arpc_h2)
# docs/grpc.md names files and tests: they have to be there.
ampd_source_test(test_grpc_table unit /usr/bin/python3 -B ${CMAKE_CURRENT_LIST_DIR}/test_grpc_table.py ${PROJECT_SOURCE_DIR})
ampd_test(test_rpc_memory SUITE unit SOURCES test_rpc_memory.c rpc_pair.c LINK arpc_h2)
target_link_options(test_rpc_memory PRIVATE -Wl,--wrap=malloc -Wl,--wrap=calloc -Wl,--wrap=realloc -Wl,--wrap=strdup
                    -Wl,--wrap=strndup) # to run out of memory
