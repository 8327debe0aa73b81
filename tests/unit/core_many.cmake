ampd_test(test_core_many SUITE unit SOURCES test_core_many.c core_fixture.c LINK ampd_core amp amp_base m)
ampd_test(test_core_create SUITE unit SOURCES test_core_create.c core_pair.c core_fixture.c LINK ampd_core amp amp_base m)
ampd_test(test_core_act_rows SUITE unit SOURCES test_core_act_rows.c core_pair.c core_fixture.c LINK ampd_core amp amp_base m)
ampd_test(test_core_recovery SUITE unit SOURCES test_core_recovery.c core_pair.c core_fixture.c LINK ampd_core amp amp_base m)
