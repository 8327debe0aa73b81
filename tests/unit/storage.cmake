ampd_test(test_storage_store SUITE unit
  SOURCES test_storage_store.c storage_fixture.c
  LINK ampd_store_sqlite)
