# What of the cores takes more than one machine to go wrong: waits, memory, restarts.
ampd_test(test_core_faults SUITE unit SOURCES test_core_faults.c core_fixture.c LINK ampd_core amp amp_base m)
ampd_test(test_core_waits SUITE unit SOURCES test_core_waits.c core_fixture.c LINK ampd_core amp amp_base m)
ampd_test(test_ampclient_core_layout SUITE unit SOURCES test_ampclient_core_layout.c LINK ampclient_core amp amp_base)
ampd_test(test_core_memory SUITE unit SOURCES test_core_memory.c core_fixture.c LINK ampd_core amp amp_base m)
target_link_options(test_core_memory PRIVATE -Wl,--wrap=malloc -Wl,--wrap=calloc -Wl,--wrap=realloc)
ampd_test(test_core_peers SUITE unit SOURCES test_core_peers.c core_fixture.c LINK ampd_core amp amp_base m)
ampd_test(test_core_edges SUITE unit SOURCES test_core_edges.c core_fixture.c LINK ampd_core amp amp_base m)
ampd_test(test_core_epochs SUITE unit SOURCES test_core_epochs.c core_fixture.c LINK ampd_core amp amp_base m)
