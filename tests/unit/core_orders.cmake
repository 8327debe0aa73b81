# Whole steps of several cores, with threads that run their jobs.
ampd_test(test_core_orders SUITE unit SOURCES test_core_orders.c LINK ampd_core amp amp_base Threads::Threads m)
