ampd_test(test_storage_store SUITE unit
  SOURCES test_storage_store.c storage_fixture.c
  LINK ampd_store_sqlite)
ampd_test(test_storage_trim SUITE unit
  SOURCES test_storage_trim.c storage_fixture.c
  LINK ampd_store_sqlite)
ampd_test(test_storage_datadir SUITE unit
  SOURCES test_storage_datadir.c storage_fixture.c storage_faults.c
  LINK ampd_store_sqlite ampd_checkpoint PkgConfig::SQLITE3)
ampd_test(test_storage_sqlite SUITE unit
  SOURCES test_storage_sqlite.c storage_fixture.c storage_faults.c
  LINK ampd_store_sqlite ampd_checkpoint PkgConfig::SQLITE3)
ampd_test(test_storage_checkpoint SUITE unit
  SOURCES test_storage_checkpoint.c storage_fixture.c storage_faults.c
  LINK ampd_store_sqlite ampd_checkpoint)
ampd_test(test_storage_rights SUITE unit
  SOURCES test_storage_rights.c storage_fixture.c
  LINK ampd_store_sqlite ampd_checkpoint)
ampd_test(test_storage_bulk SUITE unit
  SOURCES test_storage_bulk.c storage_fixture.c storage_faults.c
  LINK ampd_store_sqlite ampd_checkpoint)
ampd_test(test_storage_bulk_reader SUITE unit
  SOURCES test_storage_bulk_reader.c storage_fixture.c storage_faults.c
  LINK ampd_store_sqlite ampd_checkpoint)
ampd_test(test_storage_journal SUITE unit
  SOURCES test_storage_journal.c storage_fixture.c storage_faults.c
  LINK ampd_store_sqlite ampd_checkpoint PkgConfig::XXHASH)
ampd_test(test_storage_parts SUITE unit
  SOURCES test_storage_parts.c storage_fixture.c
  LINK ampd_core ampd_store_sqlite ampd_checkpoint)
ampd_test(test_storage_power SUITE unit TIMEOUT 900 # with sanitizers, on busy cores, 241 s were too few for half of it
  SOURCES test_storage_power.c storage_record.c storage_fixture.c
  LINK ampd_store_sqlite ampd_checkpoint PkgConfig::XXHASH)
ampd_test(test_storage_damage SUITE unit TIMEOUT 120
  SOURCES test_storage_damage.c storage_fixture.c
  LINK ampd_store_sqlite ampd_checkpoint PkgConfig::SQLITE3 PkgConfig::JANSSON PkgConfig::XXHASH)
ampd_test(test_storage_edges SUITE unit
  SOURCES test_storage_edges.c storage_fixture.c
  LINK ampd_store_sqlite ampd_checkpoint)
