# libampclient against a server that does wrong what it is told to.
if(TARGET ampclient_io)
  add_library(fake_ampd STATIC fake_ampd.c fake_calls.c fake_streams.c)
  target_link_libraries(fake_ampd PUBLIC arpc ampd_proto amp_base PkgConfig::UV Threads::Threads PRIVATE ampd_flags)
  ampd_test(test_client SUITE integration SOURCES test_client.c LINK ampclient_io fake_ampd TIMEOUT 1800)
  target_link_options(test_client PRIVATE -Wl,--wrap=strdup)
  ampd_test(test_client_units SUITE integration SOURCES test_client_units.c LINK ampclient_io fake_ampd TIMEOUT 1800)
  ampd_test(test_client_faults SUITE integration SOURCES test_client_faults.c LINK ampclient_io fake_ampd TIMEOUT 1800)
  target_link_options(test_client_faults PRIVATE -Wl,--wrap=uv_hrtime -Wl,--wrap=pthread_cond_timedwait)
endif()

# The client, installed and used by a program outside the tree, with a real ampd. An instrumented library could not be loaded.
if(TARGET ampd AND TARGET ampclient AND CMAKE_BUILD_TYPE STREQUAL "Release")
  add_test(NAME test_client_install
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/install_client.sh ${PROJECT_BINARY_DIR} ${CMAKE_C_COMPILER})
  set_tests_properties(test_client_install PROPERTIES LABELS integration SKIP_RETURN_CODE 77 TIMEOUT 1800)
endif()

# The library is unloaded while a thread of it is in the resolver.
if(TARGET ampclient)
  add_executable(unload_client unload_client.c)
  target_link_libraries(unload_client PRIVATE Threads::Threads ${CMAKE_DL_LIBS} ampd_flags)
  target_include_directories(unload_client PRIVATE ${PROJECT_SOURCE_DIR})
  set_target_properties(unload_client PROPERTIES ENABLE_EXPORTS ON)
  add_test(NAME test_client_unload COMMAND unload_client $<TARGET_FILE:ampclient>)
  set_tests_properties(test_client_unload PROPERTIES LABELS integration TIMEOUT 120)
endif()

# Units: a worker whose model is larger than its memory.
if(TARGET ampd AND TARGET ampclient)
  add_executable(units_worker units_worker.c)
  target_link_libraries(units_worker PRIVATE ampclient amp ampd_flags)
  add_test(NAME test_units COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_SOURCE_DIR}/test_units.py $<TARGET_FILE_DIR:ampd>)
  set_tests_properties(test_units PROPERTIES LABELS integration SKIP_RETURN_CODE 77 TIMEOUT 1800)
endif()

# Memory shared with workers of the same host: the bytes are those of any other way.
if(TARGET ampd AND TARGET ampclient)
  add_executable(shared_worker shared_worker.c)
  target_link_libraries(shared_worker PRIVATE ampclient amp ampd_flags)
  foreach(part shared shared_attacks shared_limits)
    add_test(NAME test_server_${part}
             COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_SOURCE_DIR}/test_server_${part}.py $<TARGET_FILE_DIR:ampd>)
    set_tests_properties(test_server_${part} PROPERTIES LABELS integration SKIP_RETURN_CODE 77 TIMEOUT 1800)
  endforeach()
endif()

# ampctl against a real ampd; Python's own library is enough.
if(TARGET ampd AND TARGET ampctl AND EXISTS ${PROJECT_SOURCE_DIR}/examples/digits/CMakeLists.txt)
  add_test(NAME test_ampctl
    COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_SOURCE_DIR}/test_ampctl.py $<TARGET_FILE_DIR:ampctl>)
  set_tests_properties(test_ampctl PROPERTIES LABELS integration TIMEOUT 1800)
endif()

# Verbs of ampctl that have a file of their own; python3-crc32c and python3-pyte are taken where they are there.
if(TARGET ampd AND TARGET ampctl)
  foreach(part tensorboard doctor top backup)
    add_test(NAME test_ampctl_${part}
      COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_SOURCE_DIR}/test_ampctl_${part}.py $<TARGET_FILE_DIR:ampctl>)
    set_tests_properties(test_ampctl_${part} PROPERTIES LABELS integration SKIP_RETURN_CODE 77 TIMEOUT 1800)
  endforeach()
endif()

# What ampctl and ampd say of themselves, in --help, manual pages and completion.
if(TARGET ampd AND TARGET ampctl)
  add_test(NAME test_ampctl_usage
    COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_SOURCE_DIR}/test_ampctl_usage.py ${PROJECT_BINARY_DIR})
  set_tests_properties(test_ampctl_usage PROPERTIES LABELS integration TIMEOUT 600)
endif()
