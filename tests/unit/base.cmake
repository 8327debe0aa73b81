# base: what is pure.
ampd_test(test_base_metric SUITE unit SOURCES test_base_metric.c LINK amp_base)
ampd_test(test_base_large SUITE unit SOURCES test_base_large.c LINK amp_base)
ampd_test(test_base_spin SUITE unit SOURCES test_base_spin.c LINK amp_base)
ampd_test(test_base_log SUITE unit SOURCES test_base_log.c LINK amp_base PkgConfig::JANSSON)
ampd_test(test_base_shared SUITE unit SOURCES test_base_shared.c LINK amp_base)
ampd_test(test_base_usage SUITE unit SOURCES test_base_usage.c LINK amp_usage)
ampd_test(test_base_text SUITE unit SOURCES test_base_text.c LINK amp_base)
