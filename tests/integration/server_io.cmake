# Slow readers, the unix socket, the end of the process.
if(TARGET ampd)
  add_test(NAME test_server_io
           COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_SOURCE_DIR}/test_server_io.py $<TARGET_FILE_DIR:ampd>)
  set_tests_properties(test_server_io PROPERTIES LABELS integration SKIP_RETURN_CODE 77 TIMEOUT 900)
endif()
