# The cores of server and client.
foreach(module acts delete floor journal life ranks rollback spec steps stray)
  ampd_test(test_core_${module} SUITE unit SOURCES test_core_${module}.c core_fixture.c LINK ampd_core amp amp_base m)
endforeach()
ampd_test(test_core_layout SUITE unit SOURCES test_core_layout.c LINK ampd_core amp amp_base m)
ampd_test(test_core_states SUITE unit SOURCES test_core_states.c LINK ampd_core ampclient_core amp_base)
target_compile_definitions(test_core_states PRIVATE AMPD_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
ampd_test(test_ampclient_core_steps SUITE unit SOURCES test_ampclient_core_steps.c LINK ampclient_core amp amp_base)
ampd_test(test_ampclient_core_member SUITE unit SOURCES test_ampclient_core_member.c LINK ampclient_core amp amp_base)
