# The runbooks of docs/runbooks.md, side by side: most of their time they wait.
if(TARGET ampd)
  foreach(part every_block onto_new_machines upgrade another_number goes_on_when_etcd goes_on_when_one goes_on_when_all)
    add_test(NAME test_server_runbooks_${part}
             COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_LIST_DIR}/test_server_runbooks.py $<TARGET_FILE_DIR:ampd> ${part})
    set_tests_properties(test_server_runbooks_${part} PROPERTIES LABELS integration SKIP_RETURN_CODE 77 TIMEOUT 1800)
  endforeach()
endif()
