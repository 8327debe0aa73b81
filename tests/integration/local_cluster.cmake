# deploy/local-cluster.sh: a few processes of each kind, in namespaces where this is root.
if(TARGET ampd)
  add_test(NAME test_local_cluster
           COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_LIST_DIR}/test_local_cluster.py $<TARGET_FILE_DIR:ampd>)
  set_tests_properties(test_local_cluster PROPERTIES LABELS integration SKIP_RETURN_CODE 77 TIMEOUT 1800)
endif()
# deploy/up.sh without Docker.
add_test(NAME test_up COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_LIST_DIR}/test_up.py)
set_tests_properties(test_up PROPERTIES LABELS integration TIMEOUT 300)
