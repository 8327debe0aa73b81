# Slow readers, the unix socket, the end of the process; disks that are full or do not answer.
if(TARGET ampd)
  foreach(part io disk)
    add_test(NAME test_server_${part}
             COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_SOURCE_DIR}/test_server_${part}.py $<TARGET_FILE_DIR:ampd>)
    set_tests_properties(test_server_${part} PROPERTIES LABELS integration SKIP_RETURN_CODE 77 TIMEOUT 1800)
  endforeach()
  add_library(hanging_statvfs SHARED hanging_statvfs.c)
  add_library(hanging_sync SHARED hanging_sync.c)
  add_library(full_unlink SHARED full_unlink.c)
endif()

# In front of ampctl, for test_server_files.
if(TARGET ampctl)
  add_library(hanging_write SHARED hanging_write.c)
  target_link_libraries(hanging_write PRIVATE Threads::Threads)
endif()
