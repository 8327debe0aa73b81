# The cores of server and client.
foreach(module stray)
  ampd_test(test_core_${module} SUITE unit SOURCES test_core_${module}.c core_fixture.c LINK ampd_core amp amp_base)
endforeach()
