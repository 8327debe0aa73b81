# base: what is pure.
ampd_test(test_base_metric SUITE unit SOURCES test_base_metric.c LINK amp_base)
ampd_test(test_base_large SUITE unit SOURCES test_base_large.c LINK amp_base)
ampd_test(test_base_look SUITE unit SOURCES test_base_look.c LINK amp_base)
