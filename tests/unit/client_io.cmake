# What is pure in client/io and client/ampctl.
if(TARGET ampclient_io)
  ampd_test(test_client_flat SUITE unit SOURCES test_client_flat.c LINK ampclient_io)
  ampd_test(test_client_spec SUITE unit SOURCES test_client_spec.c LINK ampclient_io)
  ampd_test(test_client_secure SUITE unit SOURCES test_client_secure.c LINK ampclient_io)
  ampd_test(test_ampctl_plot SUITE unit SOURCES test_ampctl_plot.c LINK ampctl_output)
  ampd_test(test_ampctl_rows SUITE unit SOURCES test_ampctl_rows.c LINK ampctl_output)
  ampd_test(test_ampctl_print SUITE unit SOURCES test_ampctl_print.c LINK ampctl_output)
endif()
