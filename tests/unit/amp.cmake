# amp/: the numerics above the kernels.
foreach(module copy norm reduce optim scaler autocast cast_cache pass cpu given)
  ampd_test(test_amp_${module} SUITE unit SOURCES test_amp_${module}.c LINK amp m)
endforeach()

# Scalers and gradient utilities.
foreach(module grad clip loss_scaler static_scaler dynamic_scaler fsdp fsdp_hooks)
  ampd_test(test_amp_${module} SUITE unit SOURCES test_amp_${module}.c LINK amp m)
endforeach()
target_link_options(test_amp_fsdp PRIVATE -Wl,--wrap=malloc) # to run out of memory

# Autocast's context and registry; the allocator is wrapped to count.
foreach(module autocast_context registry dlpack)
  ampd_test(test_amp_${module} SUITE unit SOURCES test_amp_${module}.c LINK amp m)
endforeach()
target_link_options(test_amp_autocast_context PRIVATE -Wl,--wrap=malloc -Wl,--wrap=calloc -Wl,--wrap=realloc)

ampd_test(test_amp_memory SUITE unit SOURCES test_amp_memory.c LINK amp m)
target_link_options(test_amp_memory PRIVATE -Wl,--wrap=malloc -Wl,--wrap=calloc) # to run out of memory
