# deploy/kubernetes, without a cluster.
if(TARGET ampd)
  add_test(NAME test_kubernetes
           COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_LIST_DIR}/test_kubernetes.py $<TARGET_FILE_DIR:ampd>)
  set_tests_properties(test_kubernetes PROPERTIES LABELS integration TIMEOUT 300)
endif()
