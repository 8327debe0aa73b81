# The HTTP port, the page there, and what service managers hear.
if(TARGET ampd)
  foreach(part page page_browser page_away page_names page_plots page_disk)
    add_test(NAME test_${part}
             COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_LIST_DIR}/test_${part}.py $<TARGET_FILE_DIR:ampd>)
    set_tests_properties(test_${part} PROPERTIES LABELS integration SKIP_RETURN_CODE 77 TIMEOUT 1800)
  endforeach()
  foreach(part http notify)
    add_test(NAME test_server_${part}
             COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_LIST_DIR}/test_server_${part}.py $<TARGET_FILE_DIR:ampd>)
    set_tests_properties(test_server_${part} PROPERTIES LABELS integration SKIP_RETURN_CODE 77 TIMEOUT 1800)
  endforeach()
endif()
