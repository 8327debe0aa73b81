# What of server/io needs no loop, or one with nothing but threads on it.
ampd_test(test_server_memory_limit SUITE unit SOURCES test_server_memory_limit.c LINK ampd_server)
ampd_test(test_server_auth_rules SUITE unit SOURCES test_server_auth_rules.c LINK ampd_server)
ampd_test(test_server_roles SUITE unit SOURCES test_server_roles.c LINK ampd_server)
target_link_options(test_server_roles PRIVATE -Wl,--wrap=arpc_token_hash_equal)
ampd_test(test_server_explain SUITE unit SOURCES test_server_explain.c LINK ampd_server)
ampd_test(test_server_peer_bytes SUITE unit SOURCES test_server_peer_bytes.c LINK ampd_server)
ampd_test(test_server_threads SUITE unit SOURCES test_server_threads.c LINK ampd_server)
