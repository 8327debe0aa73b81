"""What was there before a rule of check_style.py was, and is not done yet: by tree, names of files anywhere in it.

These lists only shrink: a name whose files are fine is a violation itself.
"""


def _keys(lists):
    return {tree + name: "not yet" for tree, names in lists.items() for name in names.split()}


# Lines of more than 120 columns.
WIDE = _keys({
    "tests/": """
        acts.c ampd_faults.py ampd_target.py ampd_testing.py asks.c attacks.py auth_testing.py check.c
        core_pair.h crash.py crowds.py disk.c elastic_worker.c ends.c etcd_testing.py failpoint.c
        fake_ampd.h fault_cluster.py fault_network.py formulas.py grpcio_echo.py grpcio_life.py h2_server.py
        hanging_write.c immintrin.h journal.c kinds.c losses.c machines_testing.py main.c net.c run.c run.py
        scaler.py scenarios.py seeds.py server.c sessions.c shifted_clock.c sim.h slow_rename.c slow_sync.c
        test_amp_dlpack.py test_ampctl.py test_cluster_badinput.py test_cluster_faults.py test_core_act_rows.c
        test_core_acts.c test_core_borders.c test_core_faults.c test_core_floor.c
        test_core_many.c test_core_misfits.c test_core_orders.c test_core_peers.c test_core_recovery.c
        test_core_steps.c test_digits.py test_grpc_table.py test_hardening.py
        test_local_cluster.py test_proto_schema.py test_server_acts.py test_server_auth.py
        test_server_badinput.py test_server_cluster.py test_server_cluster_places.c test_server_elastic.py
        test_server_etcd.py test_server_failover.py test_server_files.py test_server_folders.py
        test_server_follow.py test_server_grpcurl.py test_server_history.py test_server_http.py test_server_io.py
        test_server_join.py test_server_journal.py test_server_leave.py test_server_lost.py
        test_server_members.py test_server_noticed.py test_server_notify.py test_server_peer_bytes.c
        test_server_peers.c test_server_peers.py test_server_places.py test_server_reshard.py
        test_server_restart.py test_server_results.py test_server_runbooks.py test_server_shards.py
        test_server_sizes.py test_server_specs.py test_server_steps.py test_server_threads.c test_server_tls.py
        test_server_unmounted.py test_server_workers.py test_specs_table.py test_up.py values.c worker.c
    """,
})

# sizeof in the other form.
SIZEOF = _keys({
    "tests/": """
        acts.c asks.c check.c core_fixture.c core_pair.c disk.c journal.c leases.c losses.c main.c model.c net.c
        run.c server.c sessions.c test_core_act_rows.c test_core_acts.c test_core_borders.c test_core_delete.c
        test_core_edges.c test_core_floor.c test_core_journal.c test_core_layout.c test_core_loads.c
        test_core_many.c test_core_misfits.c test_core_orders.c test_core_peers.c test_core_recovery.c
        test_core_spec.c test_core_states.c test_core_steps.c test_core_stray.c test_server_peer_bytes.c values.c
        worker.c
    """,
})

# Headers of more than 150 lines.
HEADERS = _keys({
    "tests/": "client_core_fixture.h client_fixture.h immintrin.h sim.h",
})
