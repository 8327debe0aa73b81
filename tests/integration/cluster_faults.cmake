# Clusters to which something happens, as processes. Each file prints SKIPPED and its reason, and ends with 77, where a tool is missing.
if(TARGET ampd)
  foreach(part server_follow cluster_badinput cluster_faults cluster_silence)
    add_test(NAME test_${part}
             COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_LIST_DIR}/test_${part}.py $<TARGET_FILE_DIR:ampd>)
    set_tests_properties(test_${part} PROPERTIES LABELS integration SKIP_RETURN_CODE 77 TIMEOUT 1800)
  endforeach()
  # In front of ampd, for test_cluster_badinput.
  add_library(shifted_clock SHARED shifted_clock.c)
  add_library(slow_sync SHARED slow_sync.c)
  add_library(slow_rename SHARED slow_rename.c)
endif()
