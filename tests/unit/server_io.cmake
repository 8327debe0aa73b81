# What of server/io needs no loop.
ampd_test(test_server_memory_limit SUITE unit SOURCES test_server_memory_limit.c LINK ampd_server)
