# Tests that the commit gate leaves out: they take more than 20 s, wait for chance, or repeat a suite that the gate runs
# under another setting. tests/nightly.sh runs them all. What a build lacks (UCX, for one) is passed over.
set(STRAIT_LONG_TESTS
    # Random faults in all states: the gate has `chaos`, for 25 s.
    chaos_table chaos_device chaos_nccl chaos_ucx
    # A minute under load, and scenarios that need the machine for themselves: the gate has 15 s of `soak`.
    soak_minute soak_one_slot soak_deadline soak_restart
    # Faults of all kinds under load, over each network.
    soak_faults soak_faults_sealed soak_faults_shm soak_faults_ucx
    # Suites that the gate runs under one setting.
    coll_operations_hosts1 coll_operations_hosts2 coll_groups_hosts1 coll_order_hosts1 coll_order_hosts2 coll_rings_hosts1
    coll_failures_hosts1 coll_failures_hosts2 coll_memory_hosts1 coll_memory_hosts2 coll_stress_hosts1 coll_stress_hosts2
    coll_nonblocking_hosts1 coll_rings_hosts2 coll_overflow_program_hosts2 coll_operations_shm coll_order_shm coll_failures_shm coll_stress_shm
    # GPUs as 8.6 and 9.0 are, which the gate has.
    cuda_emulated_chosen_80 cuda_emulated_chosen_120 cuda_emulated_trials_80
    # Links of 66 ranks, measured; the scenes for GPUs of more than rings hold, on fake ones: the gate has coll_rings.
    coll_many_measured coll_rings_program
    # Overflows over time, on networks of all rates: the gate has the model of it, coll_budget.
    coll_bound
    # Every bench, once and short.
    bench_runs
    # 10^5 random shapes: the gate has 10^4.
    ep_many
    # 200 random groups on two hosts: the gate has 5.
    ep_hosts_emulated_many
    # 600 random groups, and 10^5 small shapes: the gate has 15 groups.
    ep_phases_emulated_many ep_phases_emulated_small
    # 4000 random chunks beside the model of the format: the gate has 400.
    format_model_many
    # Checkpoints of hundreds of MiB.
    checkpoint_reshard_large
    # Builds of packages, and roots of distributions to install them in.
    packages wheel image kubernetes)

# Under sanitizers also what is slow there and has no memory or threads that other tests do not have, and benches.
set(long_address ep_hosts_emulated coll_choices coll_rails node_links demo)
# ThreadSanitizer: what has one thread of ours, or whose threads are those of a test that stays.
set(long_thread
    cli demo coll_memory coll_groups coll_groups_hosts2 coll_reach layering schemas client_exports client_memory collective_exports collective_preload collective_replace collective_find
    collective_refuse collective_print collective_reduce input util calibrate straitd examples bench
    coll_operations coll_order coll_shm coll_sums coll_choices coll_rings coll_spaces coll_hosts coll_plan coll_rails coll_bytes coll_budget
    coll_share coll_apart coll_many coll_report coll_scale coll_newer job node_types collective_package checkpoint_format checkpoint_save checkpoint_commit checkpoint_crash
    checkpoint_damage checkpoint_reshard checkpoint_example checkpoint format_checkpoint ep_example ep_phases_emulated fuzz_checkpoint fuzz_checkpoint_index
    fuzz_coll_report receive node_coding node_limits node_hostile node_device_fails
    node_match node_sampling node_withdraw node_rotation node_why node_codebooks_rogue node_links node_rogue node_rogue_reach node_rogue_source node_rogue_open node_rogue_request peer_stranger nccl_wire
    transport_ucx_on_gpus transport_teardown_ucx_on_gpus fuzz_chunk fuzz_chunk_repaired fuzz_roundtrip fuzz_codebook
    fuzz_container fuzz_message fuzz_channel fuzz_blob fuzz_nccl fuzz_trace fuzz_tcp fuzz_rendezvous fuzz_safetensors fuzz_options
    fuzz_http_request)

if(STRAIT_SANITIZE MATCHES address)
    list(APPEND STRAIT_LONG_TESTS ${long_address})
elseif(STRAIT_SANITIZE MATCHES thread)
    list(APPEND STRAIT_LONG_TESTS ${long_thread})
endif()

# What takes 10 s or more begins first, so that none of it is left when all else is over. CTest has no times of its own in
# a new folder.
set(STRAIT_FIRST_TESTS
    cli node_links python chaos soak coll_choices coll_many coll_operations coll_preloaded coll_rings coll_rails
    coll_memory coll_stress coll_overflow coll_failures coll_nonblocking coll_watch coll_join transport_teardown node_stream node_withdraw node_why node_sampling node_end node_codebooks_rogue peer_away coll_report
    peer format_model demo collective_reduce collective_preload collective_replace tcp log model)
