# Slow readers, the unix socket, the end of the process.
if(TARGET ampd)
  add_test(NAME test_server_io
           COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_SOURCE_DIR}/test_server_io.py $<TARGET_FILE_DIR:ampd>)
  set_tests_properties(test_server_io PROPERTIES LABELS integration SKIP_RETURN_CODE 77 TIMEOUT 1800)
  add_library(hanging_statvfs SHARED hanging_statvfs.c)
  add_library(hanging_sync SHARED hanging_sync.c)
  add_library(full_unlink SHARED full_unlink.c)
endif()

# In front of ampctl, for test_server_files.
if(TARGET ampctl)
  add_library(hanging_write SHARED hanging_write.c)
  target_link_libraries(hanging_write PRIVATE Threads::Threads)
endif()
