# ampd as a process, driven by grpcio and grpcurl. Each file prints SKIPPED and its reason, and ends with 77, where the
# foreign client is missing.
if(TARGET ampd)
  foreach(part acts cluster failover lost places unmounted folders files history specs badinput shards peers leave members noticed strays steps results restart rolling journal join grpcurl auth tls reshard sizes elastic rates losses workers etcd full full_queue retention options)
    add_test(NAME test_server_${part}
             COMMAND /usr/bin/python3 -B ${CMAKE_CURRENT_SOURCE_DIR}/test_server_${part}.py $<TARGET_FILE_DIR:ampd>)
    set_tests_properties(test_server_${part} PROPERTIES LABELS integration SKIP_RETURN_CODE 77 TIMEOUT 1800)
  endforeach()
  # Whose gradients follow from rank and step.
  add_executable(elastic_worker elastic_worker.c)
  target_link_libraries(elastic_worker PRIVATE ampclient amp ampd_flags)
  # With a schedule of its own.
  add_executable(rates_worker rates_worker.c)
  target_link_libraries(rates_worker PRIVATE ampclient amp ampd_flags)
  # For test_server_places and test_ampctl_tensorboard.
  add_library(failing_readdir SHARED failing_readdir.c)
endif()
